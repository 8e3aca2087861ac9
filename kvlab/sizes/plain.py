"""The plain decoder, which the formula of one line describes: equal layers that keep every token's key and value."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvlab.sizes.fields import as_mapping
from kvlab.sizes.formula import cache_bytes
from kvlab.sizes.layers import read_layers

BYTES_16_BIT = 2


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
        config: a Hugging Face config.json as a dict.

    Raises:
        ValueError: a field is missing or no positive whole number, fields contradict each other, or the cache is not
            this simple: a latent (MLA), a window, recurrent or cross-attention layers, heads that differ by layer.
            `kvlab.sizes.price` prices those.

    >>> cache_shape({"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4})
    CacheShape(n_layers=3, n_kv_heads=4, head_dim=16)
    >>> cache_shape({"num_hidden_layers": 61, "kv_lora_rank": 512, "qk_rope_head_dim": 64})
    Traceback (most recent call last):
    ...
    ValueError: config: no plain decoder, 61 latent layers by kv_lora_rank 512 + qk_rope_head_dim 64: use \
kvlab.sizes.price
    """
    layers = read_layers(as_mapping(config))
    guessed = next((warning for warning in layers.warnings if not warning.startswith("model_type")), None)
    if guessed:
        raise ValueError(f"config: {guessed}: use kvlab.sizes.price, which says so beside the number")
    if len(layers.groups) == 1 and layers.groups[0].kind == "full":
        only = layers.groups[0]
        if only.n_layers == layers.naive.layers.value and only.k_width == only.v_width:
            return CacheShape(only.n_layers, only.kv_heads, only.k_width)
    kinds = " and ".join(f"{g.n_layers} {g.kind}" for g in layers.groups) or "no"
    odd = next((g for g in layers.groups if g.kind != "full"), layers.groups[0] if layers.groups else None)
    said = _said(odd) if odd else ""
    raise ValueError(f"config: no plain decoder, {kinds} layers{said}: use kvlab.sizes.price")


def _said(group: Any) -> str:
    source = group.sources.k_width if group.kind == "latent" else group.sources.holds or group.sources.n_layers
    if group.kind in ("full", "cross"):
        source = group.sources.n_layers if group.k_width == group.v_width else group.sources.v_width
    return f" by {source}" if source else ""


def bytes_per_token(config: Mapping[str, Any]) -> int:
    """Bytes of a 16-bit cache that one more token of one sequence takes, from a plain decoder's config.json.

    2 x n_layers x n_kv_heads x head_dim x 2; see `cache_shape` for where each factor comes from.

    Raises:
        ValueError: what `cache_shape` refuses.

    >>> from kvlab.sizes import load_config
    >>> bytes_per_token(load_config("llama-3.1-8b"))
    131072
    """
    shape = cache_shape(config)
    return cache_bytes(1, 1, shape.n_layers, shape.n_kv_heads, shape.head_dim, BYTES_16_BIT)
