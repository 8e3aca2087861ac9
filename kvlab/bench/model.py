"""The decoder that is timed: Llama's architecture with random weights, in torch alone, as lean as PyTorch eager allows.

`kvlab.torch_decoder` is written to be read and changed; this one is written to be timed, on machines that have nothing
but torch. It returns the logits of the last position only, so that prefill, cached and uncached steps do equal work.
"""

from typing import Any

import torch
from torch.nn.functional import embedding, rms_norm, scaled_dot_product_attention, silu

from kvlab.roofline import ModelShape, forward_bytes, forward_flops
from kvlab.sizes import cache_bytes

ROPE_BASE = 10000.0


class Buffers:
    """Keys and values of all layers, `max_len` slots allocated once; `length` says how many are filled.

    Setting `length` back lets the same step be timed again at the same context.
    """

    def __init__(self, shape: ModelShape, batch: int, max_len: int, dtype: torch.dtype, device: str) -> None:
        size = (shape.n_layers, batch, shape.n_kv_heads, max_len, shape.head_dim)
        # Filled, not zero: a step at context n may be timed without running the n tokens before it.
        self.k = torch.randn(size, dtype=dtype, device=device)
        self.v = torch.randn(size, dtype=dtype, device=device)
        self.length = 0

    def write(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Store the new rows of one layer behind `length`; return views of all rows it may read."""
        end = self.length + k.shape[2]
        if end > self.k.shape[3]:
            raise ValueError(f"cache full: {self.length} of {self.k.shape[3]} slots are filled, {k.shape[2]} more came")
        self.k[layer, :, :, self.length : end] = k
        self.v[layer, :, :, self.length : end] = v
        return self.k[layer, :, :, :end], self.v[layer, :, :, :end]


class BenchDecoder:
    """`model(ids)` computes everything; `model(ids, buffers)` reads the past from the buffers and extends them.

    Args:
        shape: of the model.
        dtype: of weights, activations and cache, by name: float32, bfloat16, float16, float64.
        device: cpu or cuda.
        max_len: positions to prepare rotations for.

    attention: "products", two plain matrix products a decode step, or "sdpa", one call of PyTorch's.
    """

    attention = "products"

    def __init__(self, shape: ModelShape, dtype: str, device: str, max_len: int, seed: int = 0) -> None:
        self.shape, self.device, self.dtype_name = shape, device, dtype
        self.dtype: torch.dtype = getattr(torch, dtype)
        self._random = torch.Generator(device).manual_seed(seed)
        s = shape
        self.layers = [
            {
                "attn_norm": self._gain(),
                "qkv": self._matrix(s.d_model, (s.n_heads + 2 * s.n_kv_heads) * s.head_dim),
                "wo": self._matrix(s.n_heads * s.head_dim, s.d_model),
                "mlp_norm": self._gain(),
                "gate_up": self._matrix(s.d_model, 2 * s.d_ff),
                "down": self._matrix(s.d_ff, s.d_model),
            }
            for _ in range(s.n_layers)
        ]
        self.final_norm = self._gain()
        self.head = self._matrix(s.d_model, s.vocab_size)
        self.embed = self.head.T if s.tied else self._matrix(s.d_model, s.vocab_size).T.contiguous()
        frequencies = ROPE_BASE ** (-torch.arange(0, s.head_dim, 2, dtype=torch.float64) / s.head_dim)
        angles = torch.outer(torch.arange(max_len, dtype=torch.float64), frequencies)
        # For halves side by side: x * cos + swapped x * sin is the rotation, in three kernels for all heads at once.
        cos, sin = angles.cos(), angles.sin()
        self.cos, self.sin = (torch.cat(two, -1).to(self.dtype).to(device) for two in ((cos, cos), (-sin, sin)))

    def _matrix(self, n_in: int, n_out: int) -> torch.Tensor:
        """(n_in, n_out) for `x @ w`, stored with the longer side contiguous, as a matrix-vector product reads best."""
        rows, columns = sorted((n_in, n_out))
        w = torch.empty(rows, columns, dtype=self.dtype, device=self.device)
        w.normal_(0.0, n_in**-0.5, generator=self._random)
        return w if (rows, columns) == (n_in, n_out) else w.T

    def _gain(self) -> torch.Tensor:
        return torch.ones(self.shape.d_model, dtype=self.dtype, device=self.device)

    def make_buffers(self, batch: int, max_len: int) -> Buffers:
        """An empty cache for `batch` sequences of up to `max_len` tokens."""
        return Buffers(self.shape, batch, max_len, self.dtype, self.device)

    @torch.inference_mode()
    def __call__(self, ids: torch.Tensor, buffers: Buffers | None = None) -> torch.Tensor:
        """Logits (batch, vocab_size) of the token after the last of `ids` (batch, n_new)."""
        s, n_new = self.shape, ids.shape[1]
        n_past = buffers.length if buffers is not None else 0
        attend = _attend_fused if self.attention == "sdpa" else _attend
        x = embedding(ids, self.embed).flatten(0, 1)  # rows of all sequences: a residual joins the product before it
        for i, layer in enumerate(self.layers):
            qkv = rms_norm(x, (s.d_model,), layer["attn_norm"], 1e-6) @ layer["qkv"]
            heads = qkv.view(*ids.shape, -1, s.head_dim).transpose(1, 2)
            turned = self._rotate(heads[:, : s.n_heads + s.n_kv_heads], n_past)
            q, k, v = turned[:, : s.n_heads], turned[:, s.n_heads :], heads[:, s.n_heads + s.n_kv_heads :]
            if buffers is not None:
                k, v = buffers.write(i, k, v)
            x = torch.addmm(x, attend(q, k, v, n_past).transpose(1, 2).reshape(len(x), -1), layer["wo"])
            gate, up = (rms_norm(x, (s.d_model,), layer["mlp_norm"], 1e-6) @ layer["gate_up"]).chunk(2, dim=-1)
            x = torch.addmm(x, silu(gate) * up, layer["down"])
        if buffers is not None:
            buffers.length = n_past + n_new
        last = x.view(*ids.shape, -1)[:, -1]
        return rms_norm(last, (s.d_model,), self.final_norm, 1e-6) @ self.head

    def _rotate(self, x: torch.Tensor, n_past: int) -> torch.Tensor:
        cos, sin = (t[n_past : n_past + x.shape[2]] for t in (self.cos, self.sin))
        first, second = x.chunk(2, dim=-1)
        return torch.addcmul(x * cos, torch.cat([second, first], dim=-1), sin)

    def work(self, n_new: int, n_past: int, batch: int, cached: bool) -> dict[str, Any]:
        """What one call must do at least: bytes read, of them weights and cache, and FLOPs."""
        s, size = self.shape, self.dtype.itemsize
        n_rows = n_past + n_new if cached else 0
        return {
            "bytes": forward_bytes(s, n_rows, batch, size, size),
            "kv_bytes": cache_bytes(batch, n_rows, s.n_layers, s.n_kv_heads, s.head_dim, size),
            "flops": forward_flops(s, n_new, n_past, batch),
        }


def _attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, n_past: int) -> torch.Tensor:
    """Offset-causal attention that shares KV heads; one query takes two plain products and copies no key."""
    batch, n_heads, n_new, head_dim = q.shape
    n_kv_heads, n_total = k.shape[1:3]
    group = n_heads // n_kv_heads
    if n_new == 1:
        scores = q.reshape(batch, n_kv_heads, group, head_dim) @ k.transpose(2, 3) * head_dim**-0.5
        weights = scores.softmax(dim=-1, dtype=torch.promote_types(torch.float32, scores.dtype)).to(v.dtype)
        return (weights @ v).reshape(batch, n_heads, 1, head_dim)
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    if n_past == 0:
        return scaled_dot_product_attention(q, k, v, is_causal=True)
    mask = torch.ones(n_new, n_total, dtype=torch.bool, device=q.device).tril(n_past)
    return scaled_dot_product_attention(q, k, v, attn_mask=mask)


def _attend_fused(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, n_past: int) -> torch.Tensor:
    """The same; one query a sequence goes to SDPA with the heads of a group as its queries, which need no mask."""
    if q.shape[2] > 1:
        return _attend(q, k, v, n_past)
    grouped = q.reshape(len(q), k.shape[1], -1, q.shape[-1])
    return scaled_dot_product_attention(grouped, k, v).reshape(q.shape)
