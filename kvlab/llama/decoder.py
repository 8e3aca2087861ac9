"""Llama's decoder in NumPy: RMSNorm, RoPE, attention over a cache, SwiGLU. `kvlab.decoder`'s call, real weights."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from kvlab.attention import attention, merge_heads, split_heads
from kvlab.caches import ConcatCache, attendable
from kvlab.decoder import rms_norm
from kvlab.llama.calls import (
    expect_caches,
    expect_context,
    expect_ids,
    expect_ints,
    expect_mask,
    expect_positions,
    most_rows,
)
from kvlab.llama.config import LlamaConfig, rope_frequencies
from kvlab.llama.weights import Layer, Weights
from kvlab.trace import Trace

Ids = Int[np.ndarray, "n_new"]
Hidden = Float[np.ndarray, "n_new d_model"]
Heads = Float[np.ndarray, "heads n head_dim"]
Queries = Float[np.ndarray, "n_heads n_new head_dim"]
New = Float[np.ndarray, "n_kv_heads n_new head_dim"]  # keys and values of the new tokens
Rows = Float[np.ndarray, "n_kv_heads n_rows head_dim"]  # of all that attention reads
Mask = Bool[np.ndarray, "n_new n_total"]


class Llama:
    """A Llama-architecture decoder: `model(ids)` or, with a cache a layer, `model(ids, caches)`.

    Args:
        config: its shape.
        weights: as `gather_weights` lays them out.
        rotate_on_read: store keys before RoPE and rotate all of them at each read, at their index among the rows held:
            a cache that evicts then never shows the model a position beyond its own size (Xiao et al. 2023,
            "StreamingLLM", section 3.2). Each read costs a rotation of every row.

    >>> from kvlab.llama.config import from_hugging_face
    >>> from kvlab.llama.weights import expected_shapes, gather_weights
    >>> sizes = dict(num_hidden_layers=2, num_attention_heads=4, hidden_size=32, intermediate_size=48, vocab_size=64)
    >>> config = from_hugging_face(dict(model_type="llama", **sizes))
    >>> rng = np.random.default_rng(0)
    >>> tensors = {name: rng.standard_normal(shape) / 6 for name, shape in expected_shapes(config)}
    >>> model = Llama(config, gather_weights(tensors, config))
    >>> ids, caches = np.array([3, 1, 4, 1, 5]), model.make_caches()
    >>> prefill, last = model(ids[:4], caches), model(ids[4:], caches)
    >>> bool(np.abs(model(ids)[4:] - last).max() < 1e-12)
    True
    """

    def __init__(self, config: LlamaConfig, weights: Weights, rotate_on_read: bool = False) -> None:
        self.config, self.weights, self.rotate_on_read = config, weights, rotate_on_read
        self.dtype = weights.embed.dtype
        self.frequencies = rope_frequencies(config)

    def __call__(
        self,
        ids: Ids,
        caches: Sequence[Any] | None = None,
        *,
        positions: Ids | None = None,
        mask: Mask | None = None,
        trace: Trace | None = None,
        last_only: bool = False,
    ) -> Float[np.ndarray, "n_logits vocab"]:
        """Logits for every token of `ids`, which follow what the caches hold.

        Args:
            ids: (n_new,) token ids.
            caches: one a layer, any that `kvlab.caches.attendable` understands; None keeps nothing.
            positions: (n_new,) position ids; None continues at the caches' length.
            mask: (n_new, n_total) bool; None is the offset causal mask, or what a cache that evicts brings.
            trace: told what this call projected, stored, read and scored.
            last_only: logits of the last token alone, (1, vocab_size): a long prompt needs no others.

        Returns:
            (n_new, vocab_size).

        Raises:
            ValueError: ids, positions or a mask that do not fit; more tokens than the model has positions; not one
                cache a layer, or caches of another shape or of unequal length. The caches are as they were. When a
                cache itself raises in the middle, the layers before it hold the new tokens: start with empty ones.
        """
        n_past = self._expect(ids, caches, positions, mask)
        if trace is not None:
            trace.begin(len(ids), n_past)
        eps = self.config.norm_eps
        turn = self.turn(np.arange(n_past, n_past + len(ids)) if positions is None else positions)
        x = self.weights.embed[ids]
        for i, layer in enumerate(self.weights.layers):
            cache = None if caches is None else caches[i]
            q, k, v = self._project(layer, rms_norm(x, layer.attn_norm, eps))
            q, k, v, seen = self._remember(q, k, v, turn, cache)
            if trace is not None:
                stored, n_rows = (0 if caches is None else len(ids)), k.shape[1]
                trace.count(i, projected=len(ids), stored=stored, read=n_rows, scores=len(ids) * n_rows)
            x = x + merge_heads(attention(q, k, v, seen if mask is None else mask)) @ layer.wo.T
            x = x + swiglu(rms_norm(x, layer.mlp_norm, eps), layer.gate_up, layer.w_down)
        x = x[-1:] if last_only else x
        return rms_norm(x, self.weights.final_norm, eps) @ self.weights.head.T

    def _project(self, layer: Layer, h: Hidden) -> tuple[Queries, New, New]:
        """Queries, keys and values of the new tokens, in one product."""
        c = self.config
        heads = split_heads(h @ layer.qkv.T, c.n_heads + 2 * c.n_kv_heads)
        return heads[: c.n_heads], heads[c.n_heads : -c.n_kv_heads], heads[-c.n_kv_heads :]

    def _remember(
        self, q: Queries, k: New, v: New, turn: tuple[np.ndarray, np.ndarray], cache: Any
    ) -> tuple[Queries, Rows, Rows, Bool[np.ndarray, "n_new n_rows"] | None]:
        """Rotate, and append to the cache, in one order or the other: (q, k, v) to attend with and the cache's mask."""
        seen, n_new = None, q.shape[1]
        if not self.rotate_on_read:
            q, k = rotate(q, turn), rotate(k, turn)
        if cache is not None:
            k, v, seen = attendable(cache, k, v)
        if self.rotate_on_read:
            cos, sin = self.turn(np.arange(k.shape[1]))
            q, k = rotate(q, (cos[len(cos) - n_new :], sin[len(sin) - n_new :])), rotate(k, (cos, sin))
        return q, k, v, seen

    def turn(self, positions: Int[np.ndarray, "n"]) -> tuple[np.ndarray, np.ndarray]:
        """(cos, sin) of each position's angles, each (n, head_dim / 2); every layer turns by the same ones."""
        angles = positions[:, None] * self.frequencies
        return np.cos(angles).astype(self.dtype), np.sin(angles).astype(self.dtype)

    def make_caches(self, make: Callable[[], Any] | None = None) -> list[Any]:
        """One empty cache a layer; `make()` builds each, a ConcatCache by default."""
        c = self.config
        return [make() if make else ConcatCache(c.n_kv_heads, c.head_dim) for _ in range(c.n_layers)]

    def make_trace(self, bytes_per_element: float | int | None = None) -> Trace:
        """An empty Trace of this model's cache shape, priced at its dtype unless told otherwise."""
        c = self.config
        size = self.dtype.itemsize if bytes_per_element is None else bytes_per_element
        return Trace(c.n_layers, c.n_kv_heads, c.head_dim, size)

    def keys_values(self, ids: Ids, rotated: bool = True) -> list[tuple[Rows, Rows]]:
        """The (k, v) of every layer after a full pass, each (n_kv_heads, n_tokens, head_dim).

        Args:
            ids: (n_tokens,) token ids.
            rotated: keys as attention reads them; False gives them before RoPE.
        """
        model = Llama(self.config, self.weights, rotate_on_read=not rotated)
        caches = model.make_caches()
        model(ids, caches, last_only=True)
        return [cache.append(*self._no_rows()) for cache in caches]

    def _no_rows(self) -> tuple[New, New]:
        nothing = np.zeros((self.config.n_kv_heads, 0, self.config.head_dim), self.dtype)
        return nothing, nothing

    def _expect(self, ids: Ids, caches: Sequence[Any] | None, positions: Ids | None, mask: Mask | None) -> int:
        """Refuse what does not fit; return the tokens cached."""
        c, n_new = self.config, expect_ints("ids", ids)
        if n_new:
            expect_ids(c, int(ids.min()), int(ids.max()))
        n_past = 0
        if caches is not None:
            n_past = expect_caches(c, caches, n_new, "append", lambda one: attendable(one, *self._no_rows()))
        if mask is not None:
            expect_mask(mask, n_new, n_past + n_new, caches)
        if self.rotate_on_read and positions is not None:
            raise ValueError("positions: keys rotated on read stand at their row's index, pass None")
        if self.rotate_on_read and caches:
            expect_context(c, int(min(n_past, most_rows(caches))), n_new)
        elif positions is None:
            expect_context(c, n_past, n_new)
        else:
            expect_positions(c, positions, n_new)
        return n_past


def rotate(x: Heads, turn: tuple[np.ndarray, np.ndarray]) -> Heads:
    """RoPE, half-split pairing: `kvlab.positions.rotate` with the cosines and sines given."""
    cos, sin = turn
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    return np.concatenate([first * cos - second * sin, first * sin + second * cos], axis=-1)


def swiglu(
    x: Hidden, gate_up: Float[np.ndarray, "two_d_ff d_model"], w_down: Float[np.ndarray, "d_model d_ff"]
) -> Hidden:
    """(silu(x gate) * (x up)) down, gate and up in one product. Shazeer 2020."""
    both, d_ff = x @ gate_up.T, w_down.shape[1]
    gate, up = both[:, :d_ff], both[:, d_ff:]
    sigmoid = 0.5 * (1 + np.tanh(0.5 * gate))  # 1 / (1 + exp(-gate)), without exp's overflow
    return (gate * sigmoid * up) @ w_down.T
