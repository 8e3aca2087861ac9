"""Weights laid out once for speed: what is read together lies together, in the order in which it is read."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from kvlab.llama.config import LlamaConfig

EMBED, FINAL_NORM, HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"


@dataclass(frozen=True)
class Layer:
    """One layer's weights. Matrices are (out, in), rows contiguous: a product with one token reads each row once."""

    attn_norm: Float[np.ndarray, "d_model"]
    qkv: Float[np.ndarray, "qkv d_model"]
    wo: Float[np.ndarray, "d_model q"]
    mlp_norm: Float[np.ndarray, "d_model"]
    gate_up: Float[np.ndarray, "two_d_ff d_model"]
    w_down: Float[np.ndarray, "d_model d_ff"]


@dataclass(frozen=True)
class Weights:
    """All weights of a decoder; with a tied head, `head` is `embed` itself."""

    embed: Float[np.ndarray, "vocab d_model"]
    layers: Iterable[Layer]
    final_norm: Float[np.ndarray, "d_model"]
    head: Float[np.ndarray, "vocab d_model"]


def gather_weights(tensors: Mapping[str, np.ndarray], config: LlamaConfig, lazy: bool = False) -> Weights:
    """Take a Llama checkpoint's tensors by their Hugging Face names, fused into `Weights`.

    Args:
        tensors: by name; a dict of arrays, or a Checkpoint, which reads each when it is asked for.
        config: says which there must be, and of what shape.
        lazy: read each layer when it is asked for, once: for who turns them into something else one by one.

    Raises:
        ValueError: a tensor is missing, has another shape than the config says, or belongs to no part of a decoder.
    """
    _expect_tensors(tensors, config)
    embed = tensors[EMBED]
    layers = (_fuse_layer(tensors, i) for i in range(config.n_layers))
    return Weights(
        embed=embed,
        layers=layers if lazy else list(layers),
        final_norm=tensors[FINAL_NORM],
        head=embed if config.tied else tensors[HEAD],
    )


def _fuse_layer(tensors: Mapping[str, np.ndarray], i: int) -> Layer:
    """One layer of `gather_weights`: new arrays, whatever the tensors were."""

    def fused(*names: str) -> np.ndarray:
        return np.concatenate([tensors[f"model.layers.{i}.{name}.weight"] for name in names])

    return Layer(
        attn_norm=fused("input_layernorm"),
        qkv=fused("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        wo=fused("self_attn.o_proj"),
        mlp_norm=fused("post_attention_layernorm"),
        gate_up=fused("mlp.gate_proj", "mlp.up_proj"),
        w_down=fused("mlp.down_proj"),
    )


def expected_shapes(config: LlamaConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of every tensor of a checkpoint, as Hugging Face names them.

    >>> from kvlab.llama.config import from_hugging_face
    >>> sizes = dict(num_hidden_layers=2, num_attention_heads=4, hidden_size=32, intermediate_size=48, vocab_size=64)
    >>> len(list(expected_shapes(from_hugging_face(dict(model_type="llama", **sizes)))))
    21
    """
    c = config
    q, kv = c.n_heads * c.head_dim, c.n_kv_heads * c.head_dim
    yield EMBED, (c.vocab_size, c.d_model)
    yield FINAL_NORM, (c.d_model,)
    if not c.tied:
        yield HEAD, (c.vocab_size, c.d_model)
    for i in range(c.n_layers):
        for name, shape in {
            "input_layernorm": (c.d_model,),
            "self_attn.q_proj": (q, c.d_model),
            "self_attn.k_proj": (kv, c.d_model),
            "self_attn.v_proj": (kv, c.d_model),
            "self_attn.o_proj": (c.d_model, q),
            "post_attention_layernorm": (c.d_model,),
            "mlp.gate_proj": (c.d_ff, c.d_model),
            "mlp.up_proj": (c.d_ff, c.d_model),
            "mlp.down_proj": (c.d_model, c.d_ff),
        }.items():
            yield f"model.layers.{i}.{name}.weight", shape


def _expect_tensors(tensors: Mapping[str, np.ndarray], config: LlamaConfig) -> None:
    """Refuse what `gather_weights` refuses, before any tensor is read."""
    expected = set()  # filled on the way: a config.json may speak of a billion layers
    shape_of = getattr(tensors, "shape", None) or (lambda name: tensors[name].shape)
    for name, shape in expected_shapes(config):
        expected.add(name)
        if name not in tensors:
            raise ValueError(f"checkpoint: {name} is missing, expected shape {shape}")
        if shape_of(name) != shape:
            raise ValueError(f"checkpoint: {name}: expected shape {shape} by config.json, got {shape_of(name)}")
    # A tied head may be stored besides, and older files keep RoPE's frequencies; neither is needed.
    known = [name for name in tensors if name not in expected and not name.endswith("rotary_emb.inv_freq")]
    if unknown := [name for name in known if name != HEAD]:
        raise ValueError(f"checkpoint: {unknown[0]} is a tensor that kvlab.llama does not know, nor what it changes")
