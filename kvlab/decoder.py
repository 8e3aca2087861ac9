"""The tiny decoder that the lessons share: Llama's architecture in NumPy, weights made from a seed.

Its words mean nothing, since it was never trained; its arithmetic is that of a real model, so everything a cache must
preserve can be tested on it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import DTypeLike

from kvlab.attention import attention, merge_heads, split_heads
from kvlab.caches import Cache, ConcatCache, attendable
from kvlab.positions import alibi_bias, rotate
from kvlab.shapes import expect, expect_count, expect_groups
from kvlab.trace import Trace

Ids = Int[np.ndarray, "n_new"]


Positions = Literal["rope", "learned", "alibi"]


@dataclass(frozen=True)
class DecoderConfig:
    """Shape of the tiny decoder. The defaults are lesson 05's toy: 128 bytes of cache a token at 16 bits."""

    vocab_size: int = 64
    d_model: int = 32
    n_layers: int = 2
    n_heads: int = 4
    n_kv_heads: int = 2
    head_dim: int = 8
    d_ff: int = 48
    positions: Positions = "rope"
    rope_base: float | int = 10000.0
    max_positions: int = 256  # rows of the learned table; RoPE and ALiBi have no such limit

    def __post_init__(self) -> None:
        for name in ("vocab_size", "d_model", "n_layers", "n_heads", "n_kv_heads", "head_dim", "d_ff", "max_positions"):
            expect_count(name, getattr(self, name), 1)
        expect_groups(self.n_heads, self.n_kv_heads)
        if self.positions not in get_args(Positions):
            raise ValueError(f"positions must be one of {', '.join(get_args(Positions))}, got {self.positions!r}")


def make_weights(config: DecoderConfig, seed: int = 0, dtype: DTypeLike = np.float64) -> dict[str, Any]:
    """Random weights, the same for the same seed. Matrices are (in, out), so that a token row is `x @ w`.

    Embeddings are small, attention is sharp and loud: with equal scales everywhere the tied head would repeat the last
    token for ever, whatever the context, and no cache could be seen to matter.

    Returns:
        "embed" (vocab_size, d_model), tied to the output head; "final_norm" (d_model,); "positions"
        (max_positions, d_model) with learned positions; "layers", a list of dicts with attn_norm, wq, wk, wv, wo,
        mlp_norm, w_gate, w_up, w_down.
    """
    rng = np.random.default_rng(seed)
    c = config

    def matrix(n_in: int, n_out: int, scale: float = 1.0) -> np.ndarray:
        return (rng.standard_normal((n_in, n_out)) * (scale / np.sqrt(n_in))).astype(dtype)

    def table(n_rows: int) -> np.ndarray:
        return (0.2 * rng.standard_normal((n_rows, c.d_model))).astype(dtype)

    def gain() -> np.ndarray:
        return (1 + 0.1 * rng.standard_normal(c.d_model)).astype(dtype)

    layers = [
        {
            "attn_norm": gain(),
            "wq": matrix(c.d_model, c.n_heads * c.head_dim, scale=2.0),
            "wk": matrix(c.d_model, c.n_kv_heads * c.head_dim),
            "wv": matrix(c.d_model, c.n_kv_heads * c.head_dim),
            "wo": matrix(c.n_heads * c.head_dim, c.d_model, scale=3.0),
            "mlp_norm": gain(),
            "w_gate": matrix(c.d_model, c.d_ff),
            "w_up": matrix(c.d_model, c.d_ff),
            "w_down": matrix(c.d_ff, c.d_model),
        }
        for _ in range(c.n_layers)
    ]
    weights = {
        "embed": table(c.vocab_size),
        "final_norm": gain(),
        "layers": layers,
    }
    if c.positions == "learned":
        weights["positions"] = table(c.max_positions)
    return weights


def rms_norm(x: Float[np.ndarray, "n d"], gain: Float[np.ndarray, "d"], eps: float = 1e-6) -> Float[np.ndarray, "n d"]:
    """x / sqrt(mean(x^2) + eps) * gain, over the last axis. Zhang and Sennrich 2019."""
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + x.dtype.type(eps)) * gain


def swiglu(x: np.ndarray, w_gate: np.ndarray, w_up: np.ndarray, w_down: np.ndarray) -> np.ndarray:
    """(silu(x w_gate) * (x w_up)) w_down. Shazeer 2020."""
    gate = x @ w_gate
    return (gate / (1 + np.exp(-gate)) * (x @ w_up)) @ w_down


class TinyDecoder:
    """A decoder of a few thousand parameters: `model(ids)` or, with a cache a layer, `model(ids, caches)`.

    Args:
        config: its shape; keyword arguments replace single fields.
        seed: of the weights.
        dtype: of weights and activations.

    >>> model = TinyDecoder()
    >>> ids = np.array([3, 1, 4, 1, 5])
    >>> full = model(ids)
    >>> caches = model.make_caches()
    >>> prefill, last = model(ids[:4], caches), model(ids[4:], caches)
    >>> bool(np.allclose(full[-1], last[0], atol=1e-12))
    True
    """

    def __init__(
        self, config: DecoderConfig | None = None, seed: int = 0, dtype: DTypeLike = np.float64, **fields: Any
    ) -> None:
        self.config = replace(config or DecoderConfig(), **fields)
        if not np.issubdtype(np.dtype(dtype), np.floating):
            raise ValueError(f"dtype: expected a float type, got {np.dtype(dtype)}")
        self.weights = make_weights(self.config, seed, dtype)
        self.dtype = np.dtype(dtype)

    @property
    def n_params(self) -> int:
        """Numbers in the weights, the tied embedding counted once."""
        w = self.weights
        flat = [v for name, v in w.items() if name != "layers"] + [v for layer in w["layers"] for v in layer.values()]
        return sum(v.size for v in flat)

    def make_caches(self, make: Callable[[], Cache] | None = None) -> list[Cache]:
        """One empty cache a layer; `make()` builds each, a ConcatCache by default."""
        c = self.config
        return [make() if make else ConcatCache(c.n_kv_heads, c.head_dim) for _ in range(c.n_layers)]

    def make_trace(self, bytes_per_element: float | int | None = None) -> Trace:
        """An empty Trace of this model's cache shape, priced at its dtype unless told otherwise."""
        c = self.config
        size = self.dtype.itemsize if bytes_per_element is None else bytes_per_element
        return Trace(c.n_layers, c.n_kv_heads, c.head_dim, size)

    def __call__(
        self,
        ids: Ids,
        caches: Sequence[Cache] | None = None,
        *,
        positions: Ids | None = None,
        mask: Bool[np.ndarray, "n_new n_total"] | None = None,
        trace: Trace | None = None,
    ) -> Float[np.ndarray, "n_new vocab"]:
        """Logits for every token of `ids`.

        Args:
            ids: (n_new,) token ids, which follow what the caches hold.
            caches: one a layer, of any kind that `attendable` understands, each appended to; None keeps nothing.
            positions: (n_new,) position ids; None continues at the cache's length.
            mask: (n_new, n_total) bool; None is the offset causal mask.
            trace: told what this call projected, stored, read and scored.

        Returns:
            (n_new, vocab_size).

        Raises:
            ValueError: ids that are no row of known tokens, not one cache a layer, caches of unequal length, positions
                or a mask that do not fit; the caches are as they were.
        """
        n_new, n_past = self._expect(ids, caches)
        if positions is None:
            positions = np.arange(n_past, n_past + n_new)
        # All that can be refused is refused here, before the first layer's cache takes a row.
        _expect_ints("positions", positions, n_new=n_new)
        if mask is not None:
            expect("mask", mask, ("n_new", "n_total"), n_new=n_new, n_total=n_past + n_new)
            if not mask.any(axis=1).all():
                raise ValueError(f"mask: row {int(mask.any(axis=1).argmin())} is all False, each query needs a key")
        x = self._embed(ids, positions)
        if trace is not None:
            trace.begin(n_new, n_past)
        for i, layer in enumerate(self.weights["layers"]):
            h = rms_norm(x, layer["attn_norm"])
            x = x + self._attend(i, layer, h, positions, caches, mask, trace)
            x = x + swiglu(rms_norm(x, layer["mlp_norm"]), layer["w_gate"], layer["w_up"], layer["w_down"])
        return rms_norm(x, self.weights["final_norm"]) @ self.weights["embed"].T

    def keys_values(self, ids: Ids, mask: Bool[np.ndarray, "n n"] | None = None) -> list[tuple[np.ndarray, np.ndarray]]:
        """The (k, v) of every layer after a full pass, each (n_kv_heads, n_tokens, head_dim), keys as stored."""
        caches = self.make_caches()
        self(ids, caches, mask=mask)
        c = self.config
        nothing = np.zeros((c.n_kv_heads, 0, c.head_dim), self.dtype)
        return [cache.append(nothing, nothing) for cache in caches]

    def _embed(self, ids: Ids, positions: Ids) -> Float[np.ndarray, "n_new d_model"]:
        x = self.weights["embed"][ids]
        if self.config.positions != "learned":
            return x
        if len(positions) and not 0 <= positions.min() <= positions.max() < self.config.max_positions:
            raise ValueError(
                f"positions must be 0 to {self.config.max_positions - 1}, the rows of the learned table, "
                f"got {positions.min()} to {positions.max()}"
            )
        return x + self.weights["positions"][positions]

    def _attend(
        self,
        i: int,
        layer: dict[str, np.ndarray],
        h: Float[np.ndarray, "n_new d_model"],
        positions: Ids,
        caches: Sequence[Cache] | None,
        mask: Bool[np.ndarray, "n_new n_total"] | None,
        trace: Trace | None,
    ) -> Float[np.ndarray, "n_new d_model"]:
        c, n_new = self.config, len(h)
        q = split_heads(h @ layer["wq"], c.n_heads)
        k = split_heads(h @ layer["wk"], c.n_kv_heads)
        v = split_heads(h @ layer["wv"], c.n_kv_heads)
        if c.positions == "rope":
            q, k = rotate(q, positions, c.rope_base), rotate(k, positions, c.rope_base)
        if caches is not None:
            k, v, mask_of_cache = attendable(caches[i], k, v)
            mask = mask_of_cache if mask is None else mask
        n_total = k.shape[1]
        bias = alibi_bias(c.n_heads, n_new, n_total).astype(self.dtype) if c.positions == "alibi" else None
        if trace is not None:
            stored = n_new if caches is not None else 0
            trace.count(i, projected=n_new, stored=stored, read=n_total, scores=n_new * n_total)
        return merge_heads(attention(q, k, v, mask, bias)) @ layer["wo"]

    def _expect(self, ids: Ids, caches: Sequence[Cache] | None) -> tuple[int, int]:
        n_new = _expect_ints("ids", ids)
        if n_new and not 0 <= ids.min() <= ids.max() < self.config.vocab_size:
            raise ValueError(f"ids must be 0 to {self.config.vocab_size - 1}, got {ids.min()} to {ids.max()}")
        if caches is None:
            return n_new, 0
        if len(caches) != self.config.n_layers:
            raise ValueError(f"caches: expected one a layer, {self.config.n_layers}, got {len(caches)}")
        lengths = {len(cache) for cache in caches}
        if len(lengths) > 1:
            raise ValueError(f"caches: the layers must hold equally many tokens, got lengths {sorted(lengths)}")
        if self.config.positions == "alibi" and any(getattr(cache, "n_sinks", 0) for cache in caches):
            raise ValueError(
                "caches: ALiBi counts distance in rows, and a cache that keeps sinks has a gap in its rows"
            )
        return n_new, lengths.pop()


def _expect_ints(name: str, ids: Ids, **sizes: int) -> int:
    n_new = expect(name, ids, ("n_new",), **sizes)["n_new"]
    if not np.issubdtype(ids.dtype, np.integer):
        raise ValueError(f"{name}: expected integers, got {ids.dtype}")
    return n_new


def generate(
    model: Callable[..., np.ndarray],
    ids: Ids,
    n_new: int,
    caches: Sequence[Any] | None = None,
    trace: Trace | None = None,
) -> Int[np.ndarray, "n_all"]:
    """Greedy generation. With caches the prompt goes in once and then one token a call; without, everything each time.

    Both take n_new calls: the prompt pass yields the first new token, so the last one is never fed in or stored.

    Args:
        model: a TinyDecoder, or one that is called the same way.
        ids: (n_prompt,) with at least one token.
        n_new: tokens to generate.
        caches: empty, one a layer; None recomputes.

    Returns:
        (n_prompt + n_new,) ids, the prompt first.

    Raises:
        ValueError: an empty prompt, a negative n_new.
    """
    expect_count("n_new", n_new)
    if len(ids) == 0:
        raise ValueError("generate: the prompt is empty, give it at least one token")
    out = np.array(ids)
    fed = out
    for _ in range(n_new):
        logits = model(fed, caches, trace=trace)
        token = logits[-1].argmax()
        out = np.append(out, token)
        fed = out if caches is None else out[-1:]
    return out
