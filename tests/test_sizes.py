"""Cache sizes: the formula against real arrays, the shipped configs against transformers, refusals, and memory."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlab.sizes import (
    CacheShape,
    bytes_per_token,
    cache_bytes,
    cache_shape,
    config_names,
    crossover_tokens,
    load_config,
    max_sequences,
)

GiB = 2**30
small = st.integers(1, 6)
amounts = st.integers(1, 10**15)
LLAMA_8B_WEIGHTS = 2 * 8_030_261_248


# The formula


@given(batch=small, seq_len=st.integers(0, 6), n_layers=small, n_kv_heads=small, head_dim=small)
def test_cache_bytes_is_what_arrays_take(
    batch: int, seq_len: int, n_layers: int, n_kv_heads: int, head_dim: int
) -> None:
    for dtype in (np.float16, np.float32, np.int8):
        arrays = [np.zeros((batch, n_kv_heads, seq_len, head_dim), dtype) for _ in range(2 * n_layers)]
        size = np.dtype(dtype).itemsize
        assert cache_bytes(batch, seq_len, n_layers, n_kv_heads, head_dim, size) == sum(a.nbytes for a in arrays)


def test_known_sizes() -> None:
    toy = {"n_layers": 2, "n_kv_heads": 2, "head_dim": 8, "bytes_per_element": 2}
    assert cache_bytes(1, 1, **toy) == 128
    assert cache_bytes(1, 8, **toy) == 1024
    assert [cache_bytes(1, 4096, 32, heads, 128, 2) for heads in (32, 8, 1)] == [2 * GiB, GiB // 2, GiB // 16]
    assert cache_bytes(3, 8192, 32, 8, 128, 2) == 3 * GiB


@given(n=st.integers(10**9, 10**15), bytes_per_element=st.sampled_from([0.5, 1.0625, Fraction(18, 32), 2.0]))
def test_huge_sizes_are_exact(n: int, bytes_per_element: Any) -> None:
    """A float has 53 bits: at these sizes a product of floats is wrong in its last digits."""
    size, exact = cache_bytes(n, n, 126, 8, 128, bytes_per_element), Fraction(bytes_per_element)
    assert isinstance(size, int)
    assert size == 2 * n * n * 126 * 8 * 128 * exact.numerator // exact.denominator


def test_part_of_a_byte_is_a_whole_one() -> None:
    assert cache_bytes(1, 1, 1, 1, 1, 0.5) == 1
    assert cache_bytes(1, 1, 1, 1, 3, 0.25) == 2


@pytest.mark.usefixtures("no_shape_hook")
def test_numpy_numbers_do_not_overflow() -> None:
    big = np.int32(2**30)
    assert cache_bytes(big, big, np.int64(126), 8, 128, np.float32(0.5)) == 2**60 * 126 * 8 * 128
    assert crossover_tokens(np.int64(2**62), big, 2**10) == 2**22 + 1
    assert max_sequences(np.int64(2**62), np.int64(0), big, 2**10) == 2**22


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch": -1}, "batch: expected a whole number of at least 0, got -1"),
        ({"seq_len": 8.0}, "seq_len: expected a whole number of at least 0, got 8.0"),
        ({"n_layers": 0}, "n_layers: expected a whole number of at least 1, got 0"),
        ({"n_kv_heads": True}, "n_kv_heads: expected a whole number of at least 1, got True"),
        ({"head_dim": "128"}, "head_dim: expected a whole number of at least 1, got '128'"),
        ({"bytes_per_element": 0}, "bytes_per_element: expected a number above 0, got 0"),
        ({"bytes_per_element": -2}, "bytes_per_element: expected a number above 0, got -2"),
        ({"bytes_per_element": float("nan")}, "bytes_per_element: expected a number above 0, got nan"),
        ({"bytes_per_element": float("inf")}, "bytes_per_element: expected a number above 0, got inf"),
        ({"bytes_per_element": "fp16"}, "bytes_per_element: expected a number above 0, got 'fp16'"),
        ({"bytes_per_element": None}, "bytes_per_element: expected a number above 0, got None"),
        ({"bytes_per_element": True}, "bytes_per_element: expected a number above 0, got True"),
    ],
)
@pytest.mark.usefixtures("no_shape_hook")
def test_cache_bytes_refuses(change: dict[str, Any], message: str) -> None:
    good = {"batch": 1, "seq_len": 8, "n_layers": 2, "n_kv_heads": 2, "head_dim": 8, "bytes_per_element": 2}
    with pytest.raises(ValueError) as error:
        cache_bytes(**(good | change))
    assert str(error.value) == message


# From a config.json


def test_six_configs_or_more_with_a_source() -> None:
    assert len(config_names()) >= 6
    for name in config_names():
        assert load_config(name)["_source"].startswith("https://huggingface.co/"), name
    load_config("llama-3.1-8b")["num_hidden_layers"] = 1
    assert load_config("llama-3.1-8b")["num_hidden_layers"] == 32  # each caller gets a dict of its own


def test_shipped_configs_per_token() -> None:
    """Frozen, from 2 x layers x KV heads x head_dim x 2 by hand."""
    assert {name: bytes_per_token(load_config(name)) for name in config_names()} == {
        "gemma-2b": 18_432,
        "gemma-7b": 458_752,
        "llama-13b": 819_200,
        "llama-2-7b": 524_288,
        "llama-3.1-70b": 327_680,
        "llama-3.1-8b": 131_072,
        "mistral-7b-v0.3": 131_072,
        "mistral-nemo-12b": 163_840,
        "qwen2.5-7b": 57_344,
        "smollm2-135m": 23_040,
    }


@pytest.mark.parametrize("name", config_names())
def test_shipped_configs_against_transformers(name: str) -> None:
    """An independent oracle: transformers builds the model without memory, runs one token, and shows its cache."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = load_config(name)
    fields = {key: value for key, value in config.items() if not key.startswith("_")}
    with torch.device("meta"), torch.no_grad():
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**fields), dtype=torch.bfloat16)
        cache = model(torch.zeros((1, 1), dtype=torch.long)).past_key_values
    assert sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers) == bytes_per_token(config)
    assert sum(p.numel() for p in model.parameters()) == config["_parameters"]


@pytest.mark.parametrize(
    ("config", "tokens", "bits", "printed_mib"),
    [  # what engines printed at start-up; every source is a public log
        pytest.param(
            {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32}, 512, 32, 512, id="llama.cpp 294"
        ),
        pytest.param(
            {"hidden_size": 6656, "num_hidden_layers": 60, "num_attention_heads": 52},
            *(512, 32, 1560),
            id="llama-cpp-python 66",
        ),
        pytest.param(
            {
                "model_type": "qwen3_moe",
                "hidden_size": 2048,
                "num_hidden_layers": 48,
                "num_attention_heads": 32,
                "num_key_value_heads": 4,
                "head_dim": 128,
            },
            *(4096, 16, 384),
            id="ik_llama.cpp 380",
        ),
        pytest.param(
            {"num_hidden_layers": 30, "num_key_value_heads": 5, "num_attention_heads": 20, "head_dim": 128},
            *(4096, 16, 300),
            id="ik_llama.cpp 388",
        ),
        pytest.param(
            {"hidden_size": 1536, "num_hidden_layers": 28, "num_attention_heads": 12, "num_key_value_heads": 2},
            *(4096, 16, 112),
            id="genie-claw 410",
        ),
    ],
)
def test_sizes_that_engines_printed(config: dict[str, Any], tokens: int, bits: int, printed_mib: int) -> None:
    shape = cache_shape(config)
    size = cache_bytes(1, tokens, shape.n_layers, shape.n_kv_heads, shape.head_dim, bits // 8)
    assert size == printed_mib * 2**20


PLAIN = {"hidden_size": 40, "num_hidden_layers": 3, "num_attention_heads": 8}


@pytest.mark.parametrize(
    ("extra", "shape"),
    [
        ({}, CacheShape(3, 8, 5)),
        ({"num_key_value_heads": None, "head_dim": None}, CacheShape(3, 8, 5)),
        ({"num_key_value_heads": 2}, CacheShape(3, 2, 5)),
        ({"num_key_value_heads": 1}, CacheShape(3, 1, 5)),
        ({"head_dim": 16}, CacheShape(3, 8, 16)),
        ({"sliding_window": None, "use_sliding_window": False}, CacheShape(3, 8, 5)),
        ({"sliding_window": 4096, "use_sliding_window": False, "max_window_layers": 3}, CacheShape(3, 8, 5)),
        ({"layer_types": ["full_attention"] * 3}, CacheShape(3, 8, 5)),
        ({"is_encoder_decoder": False, "add_cross_attention": False, "multi_query": False}, CacheShape(3, 8, 5)),
        ({"model_type": "never seen", "_source": "a note"}, CacheShape(3, 8, 5)),
    ],
)
def test_plain_configs(extra: dict[str, Any], shape: CacheShape) -> None:
    config = PLAIN | extra
    before = dict(config)
    assert cache_shape(config) == shape
    assert bytes_per_token(config) == 4 * shape.n_layers * shape.n_kv_heads * shape.head_dim
    assert config == before


def test_fields_that_are_not_needed_may_be_missing() -> None:
    assert cache_shape({"num_hidden_layers": 48, "num_key_value_heads": 4, "head_dim": 128}) == CacheShape(48, 4, 128)


@pytest.mark.parametrize(
    ("extra", "named"),
    [
        ({"kv_lora_rank": 512, "qk_rope_head_dim": 64}, "3 latent layers by kv_lora_rank 512 + qk_rope_head_dim 64"),
        ({"kv_lora_rank": 512}, "qk_rope_head_dim is missing"),
        ({"qk_nope_head_dim": 128}, "kv_lora_rank is missing"),
        ({"sliding_window": 4096}, "3 sliding layers by sliding_window"),
        ({"sliding_window": 4096, "use_sliding_window": None}, "3 sliding layers by sliding_window"),
        ({"use_sliding_window": True}, "sliding_window is missing"),
        ({"sliding_window_pattern": "LLLG"}, "sliding_window_pattern LLLG, but sliding_window is missing"),
        ({"attention_chunk_size": 8192, "no_rope_layer_interval": 4}, "3 chunked layers by attention_chunk_size"),
        (
            {"layer_types": ["full_attention", "sliding_attention", "full_attention"], "sliding_window": 9},
            "2 full and 1 sliding layers by sliding_window",
        ),
        ({"layer_types": ["full_attention", "sliding_attention", "full_attention"]}, "sliding_window is missing"),
        ({"layer_types": ["linear_attention"] * 3}, "the recurrent state is not counted"),
        ({"layer_types": ["full_attention"] * 2}, "layer_types lists 2 layers, but the model has 3"),
        (
            {"layer_types": ["full_attention", "mystery", "full_attention"]},
            "a layer of kind 'mystery' is not understood",
        ),
        ({"layer_types": "full_attention"}, "layer_types: expected a list"),
        ({"mamba_d_state": 16}, "mamba_d_state = 16: some layers are recurrent, but no field says which"),
        ({"num_key_value_heads_per_layer": [8, 0, 8]}, "2 full layers by num_key_value_heads_per_layer"),
        ({"v_head_dim": 128}, "3 full layers by v_head_dim"),
        ({"is_encoder_decoder": True}, "how many tokens the encoder gives"),
        ({"window_size": 64}, "window_size = 64 is not understood"),
        ({"model_type": "deepseek_v3"}, "kv_lora_rank is missing: deepseek_v3 caches a latent"),
        ({"model_type": "falcon_h1"}, "the recurrent state is not counted"),
        ({"model_type": "bert"}, "model_type = bert: an encoder keeps no cache"),
        ({"num_hidden_layers": None}, "num_hidden_layers is missing"),
        ({"num_hidden_layers": "3"}, "num_hidden_layers: expected a whole number of at least 1, got '3'"),
        ({"num_hidden_layers": 0}, "num_hidden_layers: expected a whole number of at least 1, got 0"),
        ({"num_hidden_layers": 3.0}, "num_hidden_layers: expected a whole number of at least 1, got 3.0"),
        ({"num_attention_heads": None}, "num_attention_heads is missing"),
        ({"num_key_value_heads": 0}, "num_key_value_heads: expected a whole number of at least 1, got 0"),
        ({"num_key_value_heads": -8}, "num_key_value_heads: expected a whole number of at least 1, got -8"),
        ({"num_key_value_heads": True}, "num_key_value_heads: expected a whole number of at least 1, got True"),
        ({"num_key_value_heads": [8]}, "num_key_value_heads lists 1 layers, but num_hidden_layers = 3"),
        ({"num_key_value_heads": 3}, "num_attention_heads = 8, but num_key_value_heads = 3"),
        ({"num_key_value_heads": 16}, "num_attention_heads = 8, but num_key_value_heads = 16"),
        ({"head_dim": 0}, "head_dim: expected a whole number of at least 1, got 0"),
        ({"hidden_size": None}, "head_dim is missing, and so is hidden_size"),
        ({"hidden_size": 42}, "hidden_size 42 does not divide by num_attention_heads 8"),
    ],
)
@pytest.mark.usefixtures("no_shape_hook")
def test_what_is_not_plain_is_refused_in_one_line(extra: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError) as error:
        bytes_per_token(PLAIN | extra)
    assert named in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("config", "shape"),
    [
        ({"model_type": "gpt2", "n_layer": 12, "n_head": 12, "n_embd": 768}, CacheShape(12, 12, 64)),
        ({"model_type": "gemma3", "text_config": PLAIN | {"head_dim": 6}}, CacheShape(3, 8, 6)),
        (PLAIN | {"multi_query": True, "num_kv_heads": 8, "model_type": "falcon"}, CacheShape(3, 1, 5)),
    ],
)
def test_a_plain_decoder_in_other_words_is_plain(config: dict[str, Any], shape: CacheShape) -> None:
    assert cache_shape(config) == shape


@pytest.mark.parametrize("config", [None, [], "config.json", 7])
@pytest.mark.usefixtures("no_shape_hook")
def test_what_is_no_config_is_refused(config: Any) -> None:
    with pytest.raises(ValueError, match=r"^config: expected a config.json as a dict, got \w+$"):
        bytes_per_token(config)


@pytest.mark.parametrize("name", ["llama-4", "", "../sizes", "llama-3.1-8b.json"])
def test_unknown_config_names_what_there_is(name: str) -> None:
    with pytest.raises(ValueError, match=r"no config named .* there are: gemma-2b, .*llama-3\.1-8b"):
        load_config(name)


# Against memory


@given(weights=st.integers(0, 10**15), per_token=amounts, batch=st.integers(1, 10**4))
def test_crossover_is_the_first_context_that_is_larger(weights: int, per_token: int, batch: int) -> None:
    n = crossover_tokens(weights, per_token, batch)
    assert n * per_token * batch > weights
    assert (n - 1) * per_token * batch <= weights


def test_crossover_of_equal_sizes_is_one_more() -> None:
    assert crossover_tokens(1024, 128, 1) == 9
    assert crossover_tokens(1024, 128, 4) == 3
    assert crossover_tokens(1023, 128, 1) == 8
    assert crossover_tokens(0, 128, 1) == 1


def test_crossover_of_llama() -> None:
    assert [crossover_tokens(LLAMA_8B_WEIGHTS, 131_072, b) for b in (1, 4, 16, 64)] == [122_533, 30_634, 7_659, 1_915]


@given(memory=st.integers(0, 10**15), weights=st.integers(0, 10**15), per_token=amounts, seq_len=st.integers(1, 10**6))
def test_max_sequences_fit_and_one_more_does_not(memory: int, weights: int, per_token: int, seq_len: int) -> None:
    n = max_sequences(memory, weights, per_token, seq_len)
    assert n >= 0
    assert n == 0 or weights + n * per_token * seq_len <= memory
    assert weights + (n + 1) * per_token * seq_len > memory


def test_max_sequences_of_llama() -> None:
    memories = (80 * 10**9, 80 * GiB, 16 * 10**9)
    assert [max_sequences(m, LLAMA_8B_WEIGHTS, 131_072, 8192) for m in memories] == [59, 65, 0]
    assert max_sequences(LLAMA_8B_WEIGHTS + GiB, LLAMA_8B_WEIGHTS, 131_072, 8192) == 1
    assert max_sequences(LLAMA_8B_WEIGHTS + GiB - 1, LLAMA_8B_WEIGHTS, 131_072, 8192) == 0


def test_floats_and_fractions_stay_exact() -> None:
    assert max_sequences(80e9, LLAMA_8B_WEIGHTS, 131_072.0, 8192) == 59
    assert crossover_tokens(2**60 + 1, Fraction(1, 2), 1) == 2**61 + 3
    assert isinstance(crossover_tokens(1e3, 0.5, 1), int)
    assert max_sequences(10**30 + 1, 1, 1, 1) == 10**30


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: crossover_tokens(-1, 128, 1), "weight_bytes: expected a number of at least 0, got -1"),
        (lambda: crossover_tokens(1024, 0, 1), "per_token: expected a number above 0, got 0"),
        (lambda: crossover_tokens(1024, 128, 0), "batch: expected a whole number of at least 1, got 0"),
        (lambda: crossover_tokens(1024, 128, 1.5), "batch: expected a whole number of at least 1, got 1.5"),
        (lambda: crossover_tokens("16 GB", 128, 1), "weight_bytes: expected a number of at least 0, got '16 GB'"),
        (lambda: max_sequences(-1, 0, 128, 8), "memory_bytes: expected a number of at least 0, got -1"),
        (lambda: max_sequences(1024, -5, 128, 8), "weight_bytes: expected a number of at least 0, got -5"),
        (lambda: max_sequences(1024, 0, -128, 8), "per_token: expected a number above 0, got -128"),
        (lambda: max_sequences(1024, 0, 128, 0), "seq_len: expected a whole number of at least 1, got 0"),
        (lambda: max_sequences(float("inf"), 0, 128, 8), "memory_bytes: expected a number of at least 0, got inf"),
    ],
)
@pytest.mark.usefixtures("no_shape_hook")
def test_memory_questions_refuse(call: Any, message: str) -> None:
    with pytest.raises(ValueError) as error:
        call()
    assert str(error.value) == message
