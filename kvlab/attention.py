"""Attention in NumPy, written for reading: the yardstick that everything else in the course is held to.

Arrays are (heads, tokens, head_dim). `n_new` queries stand at the end of `n_total` keys: `n_past = n_total - n_new`.
"""

import numpy as np
from jaxtyping import Bool, Float

from kvlab.shapes import expect, expect_count, expect_groups


def softmax(x: Float[np.ndarray, "*batch n"]) -> Float[np.ndarray, "*batch n"]:
    """Turn each row of the last axis into weights that sum to 1.

    exp(x - max) / sum(exp(x - max)): subtracting the row's maximum changes nothing on paper and keeps exp finite.

    Args:
        x: (..., n) floats; -inf hides an entry, and each row needs at least one finite entry.

    Returns:
        (..., n) of the same dtype.

    Raises:
        ValueError: x is a scalar, or a row holds no finite entry (its weights would be 0/0).

    >>> softmax(np.array([1000.0, 1000.0, -np.inf])).tolist()
    [0.5, 0.5, 0.0]
    """
    if x.ndim == 0 or x.shape[-1] == 0:
        raise ValueError(f"softmax: expected shape (..., n) with n at least 1, got {x.shape}")
    peak = x.max(axis=-1, keepdims=True)
    if np.isneginf(peak).any():
        raise ValueError(f"softmax: a row of shape {x.shape} is all -inf: let every query see at least one key")
    e = np.exp(x - peak)
    return e / e.sum(axis=-1, keepdims=True)


def offset_mask(n_new: int, n_total: int) -> Bool[np.ndarray, "n_new n_total"]:
    """Causal mask for `n_new` queries at the end of `n_total` keys: True where the query may look.

    Query i stands at position n_total - n_new + i and sees every key j up to that position.

    Raises:
        ValueError: negative counts, or more new tokens than tokens in all.

    >>> offset_mask(2, 4).astype(int).tolist()
    [[1, 1, 1, 0], [1, 1, 1, 1]]
    """
    expect_count("n_new", n_new)
    expect_count("n_total", n_total)
    if n_new > n_total:
        raise ValueError(
            f"offset_mask: {n_new} new tokens cannot be among {n_total} in all: pass past + new as n_total"
        )
    query_positions = np.arange(n_total - n_new, n_total)[:, None]
    return np.arange(n_total)[None, :] <= query_positions


def split_heads(
    x: Float[np.ndarray, "n_tokens width"], n_heads: int
) -> Float[np.ndarray, "{n_heads} n_tokens head_dim"]:
    """(n_tokens, n_heads * head_dim) -> (n_heads, n_tokens, head_dim). ValueError when the width does not divide.

    >>> split_heads(np.zeros((5, 12)), 3).shape
    (3, 5, 4)
    """
    n_tokens, width = (expect("x", x, ("n_tokens", "width"))[a] for a in ("n_tokens", "width"))
    if n_heads < 1 or width % n_heads:
        raise ValueError(f"split_heads: a width of {width} does not divide into {n_heads} heads")
    return x.reshape(n_tokens, n_heads, width // n_heads).transpose(1, 0, 2)


def merge_heads(x: Float[np.ndarray, "n_heads n_tokens head_dim"]) -> Float[np.ndarray, "n_tokens width"]:
    """(n_heads, n_tokens, head_dim) -> (n_tokens, n_heads * head_dim), the inverse of split_heads.

    >>> merge_heads(np.zeros((3, 5, 4))).shape
    (5, 12)
    """
    sizes = expect("x", x, ("n_heads", "n_tokens", "head_dim"))
    return x.transpose(1, 0, 2).reshape(sizes["n_tokens"], sizes["n_heads"] * sizes["head_dim"])


def repeat_kv(
    x: Float[np.ndarray, "n_kv_heads n_total head_dim"], n_heads: int
) -> Float[np.ndarray, "{n_heads} n_total head_dim"]:
    """Repeat each KV head for the group of query heads it serves: [K1 K1 K2 K2], not [K1 K2 K1 K2].

    Query head h reads KV head h // (n_heads // n_kv_heads).

    Raises:
        ValueError: n_heads is no multiple of n_kv_heads.

    >>> repeat_kv(np.array([[[1.0]], [[2.0]]]), 4).ravel().tolist()
    [1.0, 1.0, 2.0, 2.0]
    """
    n_kv_heads = expect("x", x, ("n_kv_heads", "n_total", "head_dim"))["n_kv_heads"]
    return np.repeat(x, expect_groups(n_heads, n_kv_heads), axis=0)


def attention_weights(
    q: Float[np.ndarray, "n_heads n_new head_dim"],
    k: Float[np.ndarray, "n_kv_heads n_total head_dim"],
    mask: Bool[np.ndarray, "n_new n_total"] | None = None,
    bias: Float[np.ndarray, "n_heads n_new n_total"] | None = None,
) -> Float[np.ndarray, "n_heads n_new n_total"]:
    """softmax(q k^T / sqrt(head_dim) + bias), hidden where the mask is False.

    Args:
        q: (n_heads, n_new, head_dim).
        k: (n_kv_heads, n_total, head_dim); each KV head serves n_heads // n_kv_heads query heads, with no copy made.
        mask: (n_new, n_total) bool, True where the query may look; None is the offset causal mask.
        bias: (n_heads, n_new, n_total) added to the scores (ALiBi); None adds nothing.

    Returns:
        (n_heads, n_new, n_total), each row summing to 1.

    Raises:
        ValueError: shapes that do not fit, or a row with nothing to look at.
    """
    size = expect("q", q, ("n_heads", "n_new", "head_dim"))
    size = expect("k", k, ("n_kv_heads", "n_total", "head_dim"), head_dim=size["head_dim"]) | size
    n_heads, n_kv_heads, n_new, n_total = (size[a] for a in ("n_heads", "n_kv_heads", "n_new", "n_total"))
    group = expect_groups(n_heads, n_kv_heads)
    if mask is None:
        mask = offset_mask(n_new, n_total)
    expect("mask", mask, ("n_new", "n_total"), n_new=n_new, n_total=n_total)
    if mask.dtype != bool:  # an additive mask, 0 and -inf, would be read the wrong way round
        raise ValueError(f"mask: expected bool, True where the query may look, got {mask.dtype}")
    # The group is one more axis of q, so that k is read once a group and never repeated in memory.
    grouped = q.reshape(n_kv_heads, group * n_new, size["head_dim"])
    scores = (grouped @ k.transpose(0, 2, 1)).reshape(n_heads, n_new, n_total) / np.sqrt(size["head_dim"]).astype(
        q.dtype
    )
    if bias is not None:
        expect("bias", bias, ("n_heads", "n_new", "n_total"), n_heads=n_heads, n_new=n_new, n_total=n_total)
        scores = scores + bias
    if n_new == 0:  # no row to normalise: an empty chunk has empty weights
        return scores
    return softmax(np.where(mask, scores, -np.inf).astype(scores.dtype))


def attention(
    q: Float[np.ndarray, "n_heads n_new head_dim"],
    k: Float[np.ndarray, "n_kv_heads n_total head_dim"],
    v: Float[np.ndarray, "n_kv_heads n_total v_dim"],
    mask: Bool[np.ndarray, "n_new n_total"] | None = None,
    bias: Float[np.ndarray, "n_heads n_new n_total"] | None = None,
) -> Float[np.ndarray, "n_heads n_new v_dim"]:
    """Scaled dot-product attention, offset-causal unless a mask is given; shares KV heads among query heads.

    softmax(q k^T / sqrt(head_dim) + bias) v, as in Vaswani et al. 2017, section 3.2.1.

    Args:
        q: (n_heads, n_new, head_dim).
        k: (n_kv_heads, n_total, head_dim).
        v: (n_kv_heads, n_total, v_dim); v_dim is head_dim in most models.
        mask: (n_new, n_total) bool, True where the query may look; None is `offset_mask(n_new, n_total)`.
        bias: (n_heads, n_new, n_total) added to the scores; None adds nothing.

    Returns:
        (n_heads, n_new, v_dim).

    Raises:
        ValueError: shapes that do not fit; more queries than keys without a mask.

    >>> x = np.ones((2, 3, 4))
    >>> attention(x[:, -1:], x, x).shape
    (2, 1, 4)
    """
    weights = attention_weights(q, k, mask, bias)
    n_kv_heads, n_total = k.shape[:2]
    v_dim = expect("v", v, ("n_kv_heads", "n_total", "v_dim"), n_kv_heads=n_kv_heads, n_total=n_total)["v_dim"]
    n_heads, n_new, _ = weights.shape
    grouped = weights.reshape(n_kv_heads, n_heads // n_kv_heads * n_new, n_total)
    return (grouped @ v).reshape(n_heads, n_new, v_dim)
