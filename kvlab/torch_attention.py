"""Attention in PyTorch: `kvlab.attention` and RoPE with a batch axis, in plain tensor operations.

Tensors are (batch, heads, tokens, head_dim). Nothing here calls scaled_dot_product_attention, which the tests can
therefore use as an independent oracle.
"""

import torch
from jaxtyping import Bool, Float

from kvlab.shapes import expect, expect_count, expect_groups

Hidden = Float[torch.Tensor, "batch n width"]
Heads = Float[torch.Tensor, "batch n_heads n head_dim"]


def split_heads(x: Hidden, n_heads: int) -> Heads:
    """(batch, n, n_heads * head_dim) -> (batch, n_heads, n, head_dim). ValueError when the width does not divide.

    >>> split_heads(torch.zeros(1, 5, 12), 3).shape
    torch.Size([1, 3, 5, 4])
    """
    size = expect("x", x, ("batch", "n", "width"))
    if n_heads < 1 or size["width"] % n_heads:
        raise ValueError(f"split_heads: a width of {size['width']} does not divide into {n_heads} heads")
    return x.reshape(size["batch"], size["n"], n_heads, size["width"] // n_heads).transpose(1, 2)


def merge_heads(x: Heads) -> Hidden:
    """(batch, n_heads, n, head_dim) -> (batch, n, n_heads * head_dim), the inverse of split_heads."""
    expect("x", x, ("batch", "n_heads", "n", "head_dim"))
    return x.transpose(1, 2).flatten(2)


def rotate(x: Heads, start: int, base: float = 10000.0) -> Heads:
    """RoPE for tokens at positions start, start + 1, ...: `kvlab.positions.rotate` with a batch axis.

    Angles are computed in float64 and only their sines and cosines rounded to the dtype of x.

    Raises:
        ValueError: another number of axes, an odd head_dim, a negative start.
    """
    n, head_dim = (expect("x", x, ("batch", "n_heads", "n", "head_dim"))[a] for a in ("n", "head_dim"))
    expect_count("start", start)
    if head_dim % 2:
        raise ValueError(f"head_dim must be even to be rotated in pairs, got {head_dim}")
    positions = torch.arange(start, start + n, device=x.device, dtype=torch.float64)
    frequencies = base ** (-torch.arange(0, head_dim, 2, device=x.device, dtype=torch.float64) / head_dim)
    angles = positions[:, None] * frequencies
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1)


def offset_mask(n_new: int, n_total: int, device: torch.device | str = "cpu") -> Bool[torch.Tensor, "n_new n_total"]:
    """`kvlab.attention.offset_mask` as a bool tensor (n_new, n_total): True where the query may look.

    >>> offset_mask(2, 4).int().tolist()
    [[1, 1, 1, 0], [1, 1, 1, 1]]
    """
    expect_count("n_new", n_new)
    expect_count("n_total", n_total)
    if n_new > n_total:
        raise ValueError(
            f"offset_mask: {n_new} new tokens cannot be among {n_total} in all: pass past + new as n_total"
        )
    return torch.ones(n_new, n_total, dtype=torch.bool, device=device).tril(n_total - n_new)


def attention(
    q: Float[torch.Tensor, "batch n_heads n_new head_dim"],
    k: Float[torch.Tensor, "batch n_kv_heads n_total head_dim"],
    v: Float[torch.Tensor, "batch n_kv_heads n_total head_dim"],
    bias: Float[torch.Tensor, "n_heads n_new n_total"] | None = None,
) -> Float[torch.Tensor, "batch n_heads n_new head_dim"]:
    """Offset-causal attention that shares KV heads, in two matrix products: `kvlab.attention.attention` with a batch.

    softmax(q k^T / sqrt(head_dim) + bias) v, where query i sees keys 0 to n_total - n_new + i.

    Raises:
        ValueError: shapes that do not fit, or more queries than keys.
    """
    size = expect("q", q, ("batch", "n_heads", "n_new", "head_dim"))
    known = {"batch": size["batch"], "head_dim": size["head_dim"]}
    rows = expect("k", k, ("batch", "n_kv_heads", "n_total", "head_dim"), **known)
    size |= expect("v", v, ("batch", "n_kv_heads", "n_total", "head_dim"), **rows)
    n_new, n_total = size["n_new"], size["n_total"]
    group = expect_groups(size["n_heads"], size["n_kv_heads"])
    # The group is one more axis of q, so that k is read once a group and never repeated in memory.
    grouped = q.reshape(size["batch"], size["n_kv_heads"], group * n_new, size["head_dim"])
    scores = (grouped @ k.transpose(2, 3)).reshape(size["batch"], size["n_heads"], n_new, n_total)
    scores = scores / size["head_dim"] ** 0.5
    if bias is not None:
        scores = scores + bias
    hidden = ~offset_mask(n_new, n_total, q.device)
    weights = scores.masked_fill(hidden, float("-inf")).softmax(dim=-1)
    return (weights.reshape(size["batch"], size["n_kv_heads"], group * n_new, n_total) @ v).reshape(q.shape)
