"""Need against allocation, several GPUs, and what fits beside the weights."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlab.sizes import (
    Blocks,
    Cells,
    ReserveMax,
    allocated_bytes,
    crossover_tokens,
    fit,
    load_config,
    max_sequences,
    price,
)

LLAMA = load_config("llama-3.1-8b")
WEIGHTS = 2 * LLAMA["_parameters"]
WINDOWED = {"model_type": "mistral", "num_hidden_layers": 4, "num_key_value_heads": 2, "head_dim": 8}
WINDOWED |= {"sliding_window": 100}
MIXED = WINDOWED | {"layer_types": ["sliding_attention", "full_attention"] * 2}
HYBRID = {"model_type": "minimax", "num_hidden_layers": 4, "num_attention_heads": 4, "head_dim": 8}
HYBRID |= {"attn_type_list": [0, 0, 0, 1]}
MLA = {"model_type": "deepseek_v3", "num_hidden_layers": 2, "kv_lora_rank": 512, "qk_rope_head_dim": 64}
ROW = 2 * 2 * 8 * 2  # K and V, KV heads, head_dim, bytes: a token in a layer of WINDOWED


# Allocated


@pytest.mark.parametrize(
    ("tokens", "policy", "full", "sliding"),
    [  # tokens a full layer and a layer with a window of 100 set aside
        (0, Blocks(16), 0, 0),
        (1, Blocks(16), 16, 16),
        (16, Blocks(16), 16, 16),
        (17, Blocks(16), 32, 32),
        (1000, Blocks(16), 1008, 128),
        (1000, Blocks(256), 1024, 512),
        (1, Cells(), 256, 256),
        (257, Cells(), 512, 512),
        (5000, Cells(), 5120, 768),
        (5000, Cells(micro_batch=0), 5120, 256),
        (10, ReserveMax(8192), 8192, 100),
        (10, ReserveMax(64), 64, 64),
    ],
)
def test_what_a_policy_sets_aside(tokens: int, policy: Any, full: int, sliding: int) -> None:
    assert allocated_bytes(price(MIXED, tokens, sequences=3), policy) == 3 * ROW * (2 * full + 2 * sliding)


def test_an_engine_that_printed_what_it_pads() -> None:
    """Case LC-09: llama.cpp holds 256 cells of Qwen3-0.6B in 28.00 MiB, for 1 token as for 256."""
    config = {"model_type": "qwen3", "num_hidden_layers": 28, "num_key_value_heads": 8, "head_dim": 128}
    assert {allocated_bytes(price(config, n), Cells()) for n in (1, 200, 256)} == {28 * 2**20}


@given(tokens=st.integers(0, 5000), size=st.integers(1, 300), window=st.integers(1, 3000))
def test_allocated_is_never_less_than_needed(tokens: int, size: int, window: int) -> None:
    need = price(MIXED | {"sliding_window": window}, tokens)
    for policy in (Blocks(size), Cells(size), Cells(size, 0), ReserveMax(max(1, tokens))):
        assert allocated_bytes(need, policy) >= need.kv_bytes
    assert allocated_bytes(need, Blocks(size)) - need.kv_bytes <= ROW * (2 * (size - 1) + 2 * 2 * size)


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (ReserveMax(9), "max_len: 9 tokens are reserved, the sequences have 10"),
        (ReserveMax(0), "max_len: expected a whole number of at least 1, got 0"),
        (Blocks(0), "size: expected a whole number of at least 1, got 0"),
        (Cells(-1), "multiple: expected a whole number of at least 1, got -1"),
    ],
)
@pytest.mark.usefixtures("no_shape_hook")
def test_a_policy_that_cannot_be_is_refused(policy: Any, message: str) -> None:
    with pytest.raises(ValueError) as error:
        allocated_bytes(price(MIXED, 10), policy)
    assert str(error.value) == message


# Several GPUs


@pytest.mark.parametrize(("tp", "heads"), [(1, 8), (2, 4), (8, 1), (16, 1), (64, 1)])
def test_heads_are_split_and_then_copied(tp: int, heads: int) -> None:
    need = price(LLAMA, 1000, sequences=2, tp=tp)
    assert need.kv_bytes == price(LLAMA, 1000, sequences=2).kv_bytes
    assert need.gpu_kv_bytes * 8 == need.kv_bytes * heads


def test_a_latent_is_on_every_gpu_and_a_state_is_split() -> None:
    latent = price(MLA, 100, tp=8)
    assert latent.gpu_kv_bytes == latent.kv_bytes
    assert any("each of the 8 GPUs stores all of it" in said for said in latent.warnings)
    hybrid = price(HYBRID, 100, sequences=3, tp=2)
    assert hybrid.state_bytes == 3 * 3 * 4 * 8 * 8 * 4
    assert hybrid.gpu_state_bytes == hybrid.state_bytes // 2
    assert any("split evenly" in said for said in hybrid.warnings)


# What fits


@pytest.mark.parametrize("tokens", [1, 2048, 8192, 131072])
@pytest.mark.parametrize("batch", [1, 7])
def test_a_plain_decoder_fits_as_the_simple_formulas_say(tokens: int, batch: int) -> None:
    found = fit(price(LLAMA, tokens, batch), WEIGHTS, 80 * 10**9)
    assert found.sequences == max_sequences(80 * 10**9, WEIGHTS, 131_072, tokens)
    assert found.crossover_tokens == crossover_tokens(WEIGHTS, 131_072, batch)
    assert found.tokens == (80 * 10**9 - WEIGHTS) // (131_072 * batch)


@given(
    memory=st.integers(0, 10**6),
    weights=st.integers(0, 10**6),
    tokens=st.integers(1, 400),
    batch=st.integers(1, 5),
    config=st.sampled_from([WINDOWED, MIXED, HYBRID]),
)
def test_what_fits_fits_and_one_more_does_not(
    memory: int, weights: int, tokens: int, batch: int, config: dict[str, Any]
) -> None:
    need = price(config, tokens, batch)
    found = fit(need, weights, memory)

    def size(sequences: int, length: int) -> int:
        other = price(config, length, sequences)
        return other.kv_bytes + (other.state_bytes or 0)

    assert found.sequences is not None
    if weights <= memory and found.sequences:
        assert size(found.sequences, tokens) <= memory - weights
    assert size(found.sequences + 1, tokens) > memory - weights
    if found.tokens is None:
        assert size(batch, 10**9) <= memory - weights
    else:
        assert found.tokens == 0 or size(batch, found.tokens) <= memory - weights
        assert size(batch, found.tokens + 1) > memory - weights
    if found.crossover_tokens is None:
        assert size(batch, 10**9) <= weights
    else:
        assert size(batch, found.crossover_tokens) > weights
        assert found.crossover_tokens == 0 or size(batch, found.crossover_tokens - 1) <= weights


def test_a_window_has_no_end_to_its_tokens() -> None:
    found = fit(price(WINDOWED, 1000), weight_bytes=10**6, memory_bytes=2 * 10**6)
    assert (found.tokens, found.crossover_tokens) == (None, None)
    assert found.sequences == 10**6 // (4 * 100 * ROW)


def test_weights_are_shared_by_the_gpus() -> None:
    one, four = (fit(price(LLAMA, 8192, tp=tp), WEIGHTS, 24 * 10**9) for tp in (1, 4))
    assert (one.weight_bytes, four.weight_bytes) == (WEIGHTS, WEIGHTS // 4)
    assert four.sequences == (24 * 10**9 - WEIGHTS // 4) // (8192 * 131_072 // 4)
    assert four.crossover_tokens == one.crossover_tokens


@pytest.mark.usefixtures("no_shape_hook")
def test_weights_that_are_no_number_are_refused() -> None:
    with pytest.raises(ValueError, match="weight_bytes: expected a number of at least 0, got -1"):
        fit(price(LLAMA, 1), -1, 10**9)
    with pytest.raises(ValueError, match="memory_bytes: expected a number of at least 0, got '80 GB'"):
        fit(price(LLAMA, 1), 1, "80 GB")  # type: ignore[arg-type]
