"""The decoder laid out for speed: `kvlab.llama.Llama` with everything moved out of the step that can be.

What differs from the one to read: the gains of the norms and 1 / sqrt(head_dim) are multiplied into the matrices that
follow them; the channels of queries and keys are reordered so that the two of a RoPE pair lie side by side, and
rotating is one product of complex numbers; matrices are laid out by `products`; the cache is one static block. The
logits are the same, and a test says so.
"""

import math
from collections.abc import Callable, Iterator

import numpy as np

from kvlab.bench.decode.model import Model
from kvlab.bench.decode.products import KINDS, torch_matmul

CHUNK = 256  # tokens of a prompt at a time, so that the scores of a long one stay in the tens of megabytes

MANY_KEYS = 512


class LeanDecoder:
    """Greedy decoding of one sequence: `prefill(ids)`, then `step(token)`; both return the next token's logits.

    Args:
        model: with float32 weights.
        dtype: of the weights that are read: float32 (NumPy's BLAS) or float16 (FBGEMM). The cache is float32.
        max_len: slots of the cache. They hold noise from the start, so that a step may be timed at any `length`.

    Logits are a buffer that the next call overwrites.
    """

    def __init__(self, model: Model, dtype: str, max_len: int) -> None:
        s = self.shape = model.shape
        self.eps, self.embed = model.norm_eps, model.weights.embed
        products = KINDS[dtype](list(_matrices(model)))
        self._matmul: Callable[[np.ndarray, np.ndarray], np.ndarray] = np.matmul if dtype == "float32" else torch_matmul
        self._layers = [products[4 * i : 4 * i + 4] for i in range(s.n_layers)]
        self._head = products[-1]
        angles = np.arange(max_len)[:, None] * model.frequencies
        self._turn = np.exp(1j * angles).astype(np.complex64)
        size = (s.n_layers, s.n_kv_heads, max_len, s.head_dim)
        random = np.random.default_rng(1)
        self.k, self.v = (random.standard_normal(size, dtype=np.float32) for _ in range(2))
        self.max_len, self.length = max_len, 0

    def step(self, token: int) -> np.ndarray:
        """Logits (vocab_size,) after one more token."""
        self._expect_room(1)
        s, at, x = self.shape, self.length, self.embed[token]
        n_q, n_qk = s.n_heads * s.head_dim, (s.n_heads + s.n_kv_heads) * s.head_dim
        group = (s.n_kv_heads, s.n_heads // s.n_kv_heads, s.head_dim)
        for (qkv, wo, gate_up, down), k, v in zip(self._layers, self.k, self.v, strict=True):
            row = qkv(self._scaled(x))
            pairs = row[:n_qk].view(np.complex64).reshape(-1, s.head_dim // 2)
            pairs *= self._turn[at]
            k[:, at] = row[n_q:n_qk].reshape(s.n_kv_heads, s.head_dim)
            v[:, at] = row[n_qk:].reshape(s.n_kv_heads, s.head_dim)
            heads = attend_one(row[:n_q].reshape(group), k[:, : at + 1], v[:, : at + 1], self._matmul)
            x = x + wo(heads.reshape(n_q))
            x = x + down(_swiglu(gate_up(self._scaled(x)), s.d_ff))
        self.length = at + 1
        return self._head(self._scaled(x))

    def prefill(self, ids: np.ndarray) -> np.ndarray:
        """Logits (vocab_size,) after the last of ids (n,): the same as a step each, as matrix products."""
        if len(ids) == 0:
            raise ValueError("prefill: the prompt is empty, give it at least one token")
        self._expect_room(len(ids))
        x = self.embed[:0]
        for start in range(0, len(ids), CHUNK):
            x = self._chunk(ids[start : start + CHUNK])
        return self._head(self._scaled(x[-1]))

    def _chunk(self, ids: np.ndarray) -> np.ndarray:
        s, past, n = self.shape, self.length, len(ids)
        end, x = past + n, self.embed[ids]
        widths = np.cumsum([s.n_heads, s.n_kv_heads])
        hidden = np.arange(past, end)[:, None] < np.arange(end)
        for (qkv, wo, gate_up, down), k, v in zip(self._layers, self.k, self.v, strict=True):
            heads = qkv(self._scaled(x)).reshape(n, -1, s.head_dim)
            pairs = heads[:, : widths[1]].copy().view(np.complex64) * self._turn[past:end, None]
            heads[:, : widths[1]] = pairs.view(np.float32)
            q, k_new, v_new = np.split(heads.transpose(1, 0, 2), widths)
            k[:, past:end], v[:, past:end] = k_new, v_new
            grouped = q.reshape(s.n_kv_heads, -1, s.head_dim)
            scores = self._matmul(grouped, k[:, :end].transpose(0, 2, 1)).reshape(s.n_kv_heads, -1, n, end)
            scores[..., hidden] = -np.inf
            scores -= scores.max(-1, keepdims=True)
            np.exp(scores, out=scores)
            scores /= scores.sum(-1, keepdims=True)
            seen = self._matmul(scores.reshape(s.n_kv_heads, -1, end), v[:, :end])
            x = x + wo(np.ascontiguousarray(seen.reshape(s.n_heads, n, -1).transpose(1, 0, 2)).reshape(n, -1))
            x = x + down(_swiglu(gate_up(self._scaled(x)), s.d_ff))
        self.length = end
        return x

    def greedy(self, ids: np.ndarray, n_new: int) -> list[int]:
        """The n_new most likely tokens after ids, from an empty cache."""
        self.length = 0
        tokens = [int(self.prefill(ids).argmax())]
        while len(tokens) < n_new:
            tokens.append(int(self.step(tokens[-1]).argmax()))
        return tokens

    def _scaled(self, x: np.ndarray) -> np.ndarray:
        """RMSNorm without its gain."""
        if x.ndim == 1:
            return x * np.float32(1 / math.sqrt(np.dot(x, x) / len(x) + self.eps))
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(self.eps))

    def _expect_room(self, n_new: int) -> None:
        if self.length + n_new > self.max_len:
            raise ValueError(
                f"cache full: {self.length} of {self.max_len} slots are filled, {n_new} more tokens do not fit"
            )


def attend_one(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, matmul: Callable[[np.ndarray, np.ndarray], np.ndarray] = np.matmul
) -> np.ndarray:
    """One query a head over all keys: (n_kv_heads, group, head_dim), scaled already; k and v (n_kv_heads, n, head_dim).

    The heads of a group are the rows of one product, so that the keys are read once. Over many keys BLAS would first
    copy them all into an order of its own, unless they stand on the left.
    """
    if k.shape[1] < MANY_KEYS:
        weights = matmul(q, k.transpose(0, 2, 1))
    else:
        weights = np.ascontiguousarray(matmul(k, q.transpose(0, 2, 1)).transpose(0, 2, 1))
    weights -= weights.max(-1, keepdims=True)
    np.exp(weights, out=weights)
    weights /= weights.sum(-1, keepdims=True)
    return matmul(weights, v)


def _swiglu(both: np.ndarray, d_ff: int) -> np.ndarray:
    """silu(gate) * up, with silu(x) = x (1 + tanh(x / 2)) / 2, which cannot overflow."""
    gate, up = both[..., :d_ff], both[..., d_ff:]
    out = np.tanh(0.5 * gate)
    out += 1
    out *= gate
    out *= 0.5 * up
    return out


def _matrices(model: Model) -> Iterator[np.ndarray]:
    """The products of a step in order, (out, in), with what is constant multiplied in."""
    s = model.shape
    half = s.head_dim // 2
    pairs = np.arange(s.head_dim).reshape(2, half).T.ravel()  # 0, half, 1, half + 1, ...
    order = (np.arange(s.n_heads + s.n_kv_heads)[:, None] * s.head_dim + pairs).ravel()
    scale = np.float32(s.head_dim**-0.5)
    for layer in model.weights.layers:
        qkv = layer.qkv * layer.attn_norm
        qkv[: len(order)] = qkv[order]
        qkv[: s.n_heads * s.head_dim] *= scale
        yield from (qkv, layer.wo, layer.gate_up * layer.mlp_norm, layer.w_down)
    yield model.weights.head * model.weights.final_norm
