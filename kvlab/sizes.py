"""How big the cache is: the formula, the fields of a config.json that go into it, and the memory it must share.

Every size is an exact number of bytes: ints and fractions, never a rounded float.
"""

import json
import math
import numbers
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from kvlab.shapes import expect_count, expect_groups

CONFIGS = Path(__file__).with_name("configs")
BYTES_16_BIT = 2

Amount = int | float | Fraction


# The formula


def cache_bytes(
    batch: int, seq_len: int, n_layers: int, n_kv_heads: int, head_dim: int, bytes_per_element: Amount
) -> int:
    """Bytes that the keys and values of `batch` sequences of `seq_len` tokens take.

    2 x batch x seq_len x n_layers x n_kv_heads x head_dim x bytes_per_element; the 2 is for K and V.

    Args:
        batch: sequences, each with rows of its own; 0 is allowed.
        seq_len: tokens stored in each; 0 is allowed.
        n_layers: attention layers, each with a cache of its own.
        n_kv_heads: heads that are stored, not query heads.
        head_dim: numbers in one key; a value is as wide.
        bytes_per_element: 2 for fp16 and bf16, 1 for int8 and fp8, 0.5 for 4 bits. Scales of a quantized cache are
            not in it.

    Returns:
        Bytes; a last part of a byte counts as a whole one.

    Raises:
        ValueError: a count that is no whole number in its range, or bytes_per_element that is not above 0.

    >>> cache_bytes(batch=1, seq_len=8, n_layers=2, n_kv_heads=2, head_dim=8, bytes_per_element=2)
    1024
    >>> cache_bytes(1, 4096, 32, 8, 128, 2) / 2**30
    0.5
    """
    elements = 2 * expect_count("batch", batch) * expect_count("seq_len", seq_len)
    elements *= expect_count("n_layers", n_layers, 1) * expect_count("n_kv_heads", n_kv_heads, 1)
    elements *= expect_count("head_dim", head_dim, 1)
    return math.ceil(elements * _amount("bytes_per_element", bytes_per_element))


# From a config.json


@dataclass(frozen=True)
class CacheShape:
    """What one token of one sequence leaves behind: a key and a value of `head_dim` numbers, per KV head and layer."""

    n_layers: int
    n_kv_heads: int
    head_dim: int


def cache_shape(config: Mapping[str, Any]) -> CacheShape:
    """Read a plain decoder's layers, KV heads and head width from its config.json.

    `num_key_value_heads` absent or None means as many as `num_attention_heads` (not 1). `head_dim` is taken where it is
    given; only where it is absent or None is it `hidden_size / num_attention_heads`. Keys that start with an underscore
    are notes and are not read.

    Args:
        config: a Hugging Face config.json as a dict, with Llama's field names.

    Raises:
        ValueError: a field is missing or no positive whole number, fields contradict each other, or the config says
            that the cache is not this simple: a latent (MLA), a window, recurrent or cross-attention layers, heads that
            differ by layer, a nested text model, another spelling. Such a cache has another size; it is not guessed.

    >>> cache_shape({"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4})
    CacheShape(n_layers=3, n_kv_heads=4, head_dim=16)
    >>> cache_shape({"num_hidden_layers": 61, "num_key_value_heads": 128, "head_dim": 128, "kv_lora_rank": 512})
    Traceback (most recent call last):
    ...
    ValueError: config: kv_lora_rank = 512: a latent is cached instead of keys and values (MLA): only plain decoders \
are priced
    """
    if not isinstance(config, Mapping):
        raise ValueError(f"config: expected a config.json as a dict, got {type(config).__name__}")
    _expect_plain(config)
    n_layers = _count(config, "num_hidden_layers")
    heads = "num_key_value_heads" if _given(config, "num_key_value_heads") else "num_attention_heads"
    n_kv_heads = _count(config, heads)
    if _given(config, "num_attention_heads"):
        expect_groups(_count(config, "num_attention_heads"), n_kv_heads)
    kinds = config.get("layer_types")
    if kinds and len(kinds) != n_layers:
        raise ValueError(f"config: num_hidden_layers = {n_layers}, but layer_types lists {len(kinds)} layers")
    return CacheShape(n_layers, n_kv_heads, _head_dim(config))


def bytes_per_token(config: Mapping[str, Any]) -> int:
    """Bytes of a 16-bit cache that one more token of one sequence takes, from a plain decoder's config.json.

    2 x n_layers x n_kv_heads x head_dim x 2; see `cache_shape` for where each factor comes from.

    Raises:
        ValueError: what `cache_shape` refuses.

    >>> bytes_per_token(load_config("llama-3.1-8b"))
    131072
    """
    shape = cache_shape(config)
    return cache_bytes(1, 1, shape.n_layers, shape.n_kv_heads, shape.head_dim, BYTES_16_BIT)


def config_names() -> list[str]:
    """The models whose config.json comes with the package, for `load_config`."""
    return sorted(path.name.removesuffix(".json") for path in CONFIGS.glob("*.json"))


def load_config(name: str) -> dict[str, Any]:
    """The fields of a real model's config.json that matter here, with `_source` and `_parameters` (weights, exact).

    Raises:
        ValueError: no such model comes with the package.

    >>> load_config("gemma-7b")["head_dim"]
    256
    """
    if name not in config_names():
        raise ValueError(f"load_config: no config named {name!r}, there are: {', '.join(config_names())}")
    return json.loads((CONFIGS / f"{name}.json").read_text(encoding="utf-8"))


# Against memory


def crossover_tokens(weight_bytes: Amount, per_token: Amount, batch: int) -> int:
    """The smallest context per sequence, in tokens, at which the cache of the batch is larger than the weights.

    Equal is not larger: floor(weight_bytes / (per_token x batch)) + 1.

    Args:
        weight_bytes: of the model.
        per_token: cache bytes one token takes, as `bytes_per_token` gives it.
        batch: sequences that are cached at once, each at this context.

    Raises:
        ValueError: negative weights, a per_token that is not above 0, a batch below 1.

    >>> crossover_tokens(weight_bytes=1024, per_token=128, batch=1)
    9
    """
    per_context_token = _amount("per_token", per_token) * expect_count("batch", batch, 1)
    return _amount("weight_bytes", weight_bytes, zero=True) // per_context_token + 1


def max_sequences(memory_bytes: Amount, weight_bytes: Amount, per_token: Amount, seq_len: int) -> int:
    """Whole sequences of `seq_len` tokens whose cache fits beside the weights; 0 when not even the weights do.

    floor((memory_bytes - weight_bytes) / (per_token x seq_len)). Activations and what the runtime takes for itself are
    not in it: subtract them from memory_bytes first.

    Raises:
        ValueError: negative memory or weights, a per_token that is not above 0, a seq_len below 1.

    >>> max_sequences(memory_bytes=80 * 10**9, weight_bytes=16_060_522_496, per_token=131_072, seq_len=8192)
    59
    """
    per_sequence = _amount("per_token", per_token) * expect_count("seq_len", seq_len, 1)
    free = _amount("memory_bytes", memory_bytes, zero=True) - _amount("weight_bytes", weight_bytes, zero=True)
    return max(0, free // per_sequence)


# What makes a cache other than plain, by the config's own words. A field that is absent, None, False, 0 or empty says
# nothing; `use_sliding_window: false` switches the fields of the window off.

_WINDOW = "a window bounds what a layer keeps"
_RECURRENT = "layers that are not attention keep a state instead of keys and values"
_LATENT = "a latent is cached instead of keys and values (MLA)"
_PER_LAYER = "layers differ in their heads, or share a cache"
_WIDTHS = "keys and values may differ in width"
_CROSS = "cross-attention keeps a second cache"
_SPELLING = "KV heads or their width are spelled another way"
_NESTED = "the text model is nested in it, pass that part"

_SWITCHED_WINDOW = ("sliding_window", "sliding_window_size", "sliding_window_pattern")
_FIELDS = {
    _LATENT: ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim"),
    _WINDOW: (
        *("use_sliding_window", "window_size", "attention_window", "attention_window_size"),
        *("attention_chunk_size", "attention_types", "attn_types", "global_attn_every_n_layers"),
    ),
    _RECURRENT: (
        *("full_attention_interval", "attn_layer_period", "attn_layer_indices", "full_attn_idxs"),
        *("hybrid_override_pattern", "layers_block_type", "block_types", "attn_type_list"),
        *("linear_attn_config", "linear_num_key_heads", "conv_L_cache", "ssm_cfg", "mamba_d_state", "mamba_d_ssm"),
    ),
    _PER_LAYER: (
        *("num_key_value_heads_per_layer", "block_configs", "global_head_dim"),
        *("num_global_key_value_heads", "num_kv_shared_layers", "use_cla", "cla_share_factor"),
    ),
    _WIDTHS: ("v_head_dim",),
    _CROSS: ("is_encoder_decoder", "add_cross_attention", "cross_attention_layers"),
    _SPELLING: (
        *("num_kv_heads", "n_kv_heads", "n_head_kv", "kv_n_heads", "num_query_groups", "attn_config"),
        *("multi_query", "multi_query_attention", "multi_query_group_num", "kv_channels", "d_kv"),
    ),
    _NESTED: ("text_config", "llm_config", "language_config", "thinker_config"),
}
# Models whose config.json does not say it in a field of its own.
_MODEL_TYPES = {
    **dict.fromkeys(("falcon", "RefinedWeb", "RefinedWebModel", "gpt_bigcode"), _SPELLING),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "kimi_k2", "minicpm3"), _LATENT),
    **dict.fromkeys(("falcon_h1", "nemotron_h", "jamba", "mamba", "mamba2", "rwkv", "recurrent_gemma"), _RECURRENT),
    **dict.fromkeys(("bert", "roberta", "xlm-roberta", "distilbert", "electra"), "an encoder keeps no cache"),
}


def _expect_plain(config: Mapping[str, Any]) -> None:
    """ValueError naming the first field that says this cache is not n_layers equal layers of keys and values."""
    fields = dict(_FIELDS)
    if config.get("use_sliding_window") is not False:
        fields[_WINDOW] += _SWITCHED_WINDOW
    for reason, names in fields.items():
        for name in names:
            if _says_something(config.get(name)):
                _refuse(name, config[name], reason)
    kinds = config.get("layer_types") or []
    if not isinstance(kinds, list | tuple):
        raise ValueError(f"config: layer_types: expected a list, got {kinds!r}")
    for kind in kinds:
        if kind != "full_attention":
            _refuse("layer_types", kind, "not every layer keeps every token")
    model_type = config.get("model_type")
    if isinstance(model_type, str) and model_type in _MODEL_TYPES:
        _refuse("model_type", model_type, _MODEL_TYPES[model_type])


def _refuse(name: str, value: Any, reason: str) -> None:
    shown = f"{name} = {value}" if isinstance(value, int | float | str) else name
    raise ValueError(f"config: {shown}: {reason}: only plain decoders are priced")


def _says_something(value: Any) -> bool:
    return value is not None and value is not False and value != 0 and not (hasattr(value, "__len__") and not value)


def _given(config: Mapping[str, Any], name: str) -> bool:
    return config.get(name) is not None


def _count(config: Mapping[str, Any], name: str) -> int:
    if not _given(config, name):
        raise ValueError(f"config: {name} is missing")
    return expect_count(f"config: {name}", config[name], 1)


def _head_dim(config: Mapping[str, Any]) -> int:
    if _given(config, "head_dim"):
        return _count(config, "head_dim")
    width, n_heads = _count(config, "hidden_size"), _count(config, "num_attention_heads")
    if width % n_heads:
        raise ValueError(
            f"config: head_dim is missing, and hidden_size {width} does not divide by num_attention_heads {n_heads}"
        )
    return width // n_heads


def _amount(name: str, value: Any, zero: bool = False) -> Fraction:
    """The number as an exact fraction; ValueError unless it is finite and above 0 (or 0, where `zero` allows it)."""
    exact = None
    if isinstance(value, numbers.Rational) and not isinstance(value, bool):
        exact = Fraction(int(value.numerator), int(value.denominator))
    elif isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value):
        exact = Fraction(*value.as_integer_ratio())  # type: ignore[attr-defined]
    if exact is None or exact < 0 or (exact == 0 and not zero):
        raise ValueError(f"{name}: expected a number {'of at least' if zero else 'above'} 0, got {value!r}")
    return exact
