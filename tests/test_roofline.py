"""Bytes and FLOPs against counts that were made another way, floors against figures worked out by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlab.decoder import TinyDecoder
from kvlab.roofline import (
    HARDWARE,
    ModelShape,
    attainable_flops_per_s,
    decode_floor_ms,
    forward_bytes,
    forward_flops,
    ridge_point,
)
from kvlab.sizes import load_config

TOY = ModelShape(n_layers=2, d_model=32, n_heads=4, n_kv_heads=2, head_dim=8, d_ff=48, vocab_size=64, tied=True)
LLAMA = ModelShape.from_config(load_config("llama-3.1-8b"))

tokens = st.integers(0, 200)


@pytest.mark.parametrize(
    "name", ["llama-2-7b", "llama-13b", "llama-3.1-8b", "llama-3.1-70b", "mistral-7b-v0.3", "smollm2-135m"]
)
def test_parameters_of_real_models(name):
    """The published counts, tied and untied heads among them."""
    config = load_config(name)
    assert ModelShape.from_config(config).n_params == config["_parameters"]


def test_parameters_of_the_course_decoder():
    assert TOY.n_params == TOY.n_read_params == TinyDecoder().n_params


def test_a_looked_up_table_is_not_read():
    assert LLAMA.n_params - LLAMA.n_read_params == 128256 * 4096


@pytest.mark.parametrize("missing", ["vocab_size", "intermediate_size", "hidden_size"])
def test_a_config_without_a_size_is_refused(missing):
    config = {k: v for k, v in (load_config("llama-3.1-8b") | {"head_dim": 128}).items() if k != missing}
    with pytest.raises(ValueError, match=missing):
        ModelShape.from_config(config)


@pytest.mark.parametrize(("n_past", "batch"), [(0, 1), (9, 1), (9, 3)])
def test_decode_flops_are_those_torch_counts(n_past, batch):
    """PyTorch's own counter watches a decode step of the decoder that is timed."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from kvlab.bench.model import BenchDecoder

    model = BenchDecoder(TOY, "float32", "cpu", max_len=n_past + 1)
    buffers = model.make_buffers(batch, n_past + 1)
    buffers.length = n_past
    with FlopCounterMode(display=False) as counter:
        model(torch.zeros(batch, 1, dtype=torch.long), buffers)
    assert counter.get_total_flops() == forward_flops(TOY, 1, n_past, batch)


@given(tokens, tokens, tokens)
def test_chunks_cost_what_the_whole_costs(n_past, a, b):
    together = forward_flops(TOY, a + b, n_past, n_logits=0)
    assert forward_flops(TOY, a, n_past, n_logits=0) + forward_flops(TOY, b, n_past + a, n_logits=0) == together


def test_scores_are_counted_one_by_one():
    """4 FLOPs a visible score entry, channel, head and layer: 3 queries after 4 tokens see 5 + 6 + 7 keys."""
    without_matrices = forward_flops(TOY, 3, 4, n_logits=0) - 3 * 2 * TOY.n_layers * TOY.n_layer_matrix_params
    assert without_matrices == 4 * 2 * 4 * 8 * (5 + 6 + 7)


@given(st.integers(1, 64), st.integers(0, 5000))
def test_a_batch_shares_weights_and_not_the_cache(batch, n_total):
    weights = forward_bytes(LLAMA, 0)
    assert forward_bytes(LLAMA, n_total, batch) == weights + batch * n_total * 131_072


def test_cache_and_weights_may_differ_in_width():
    assert forward_bytes(TOY, 8, bytes_per_element=2, kv_bytes_per_element=1) == 2 * TOY.n_read_params + 512


def test_the_h100_floor_as_usually_given_and_corrected():
    kv_bytes, bandwidth = 4096 * 131_072, 3.35e12
    assert (2 * LLAMA.n_params, kv_bytes) == (16_060_522_496, 536_870_912)
    assert round(decode_floor_ms(2 * LLAMA.n_params, kv_bytes, bandwidth), 2) == 4.95
    assert round(decode_floor_ms(forward_bytes(LLAMA, 0), kv_bytes, bandwidth), 2) == 4.64
    assert HARDWARE["H100 SXM"].bandwidth_bytes_per_s == bandwidth


@given(st.floats(0.01, 1e5), st.floats(1, 1e16), st.floats(1, 1e13))
def test_nothing_lies_above_the_roofline(intensity, peak, bandwidth):
    attained = attainable_flops_per_s(intensity, peak, bandwidth)
    assert attained <= peak and attained <= intensity * bandwidth
    at_ridge = attainable_flops_per_s(ridge_point(peak, bandwidth), peak, bandwidth)
    assert np.isclose(at_ridge, peak)


def test_hardware_is_dense_and_sourced():
    """Frozen from the data sheets. Printed with sparsity, the FLOP/s would be twice as many and so would the ridge."""
    ridges = {name: round(ridge_point(g.bf16_flops_per_s, g.bandwidth_bytes_per_s)) for name, g in HARDWARE.items()}
    assert ridges == {
        "A100 80GB SXM": 153,
        "H100 SXM": 295,
        "H200 SXM": 206,
        "B200 (HGX)": 292,
        "L4": 403,
        "RTX 4090": 164,
    }
    assert all("nvidia" in g.source.lower() for g in HARDWARE.values())
    assert [g.memory_bytes for g in HARDWARE.values()] == [80e9, 80e9, 141e9, 180e9, 24e9, 24e9]


@pytest.mark.usefixtures("no_shape_hook")
@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: decode_floor_ms(-1, 0, 1e12), "weight_bytes.*-1"),
        (lambda: decode_floor_ms(1, float("nan"), 1e12), "kv_bytes.*nan"),
        (lambda: decode_floor_ms(1, 1, 0), "bandwidth_bytes_per_s.*got 0"),
        (lambda: forward_flops(TOY, -1), "n_new.*-1"),
        (lambda: forward_flops(TOY, 1, n_logits=2), "2 logits.*1 new"),
        (lambda: forward_bytes(TOY, -3), "-3"),
        (lambda: forward_bytes(TOY, 1, bytes_per_element=0), "bytes_per_element.*got 0"),
        (lambda: ridge_point(0, 1), "peak_flops_per_s.*got 0"),
        (lambda: attainable_flops_per_s(-2, 1, 1), "flops_per_byte.*-2"),
        (lambda: ModelShape(2, 32, 4, 3, 8, 48, 64), "4 query heads and 3 KV heads"),
        (lambda: ModelShape(0, 32, 4, 2, 8, 48, 64), "n_layers.*got 0"),
    ],
)
def test_bad_input_is_refused_with_its_numbers(call, said):
    with pytest.raises(ValueError, match=said):
        call()
