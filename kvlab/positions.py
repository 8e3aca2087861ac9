"""Where a token stands: rotary (RoPE), learned and linear-bias (ALiBi) positions, in NumPy."""

import numpy as np
from jaxtyping import Float, Int

from kvlab.shapes import expect, expect_count


def rope_angles(
    positions: Int[np.ndarray, "n_tokens"], head_dim: int, base: float | int = 10000.0
) -> Float[np.ndarray, "n_tokens half"]:
    """The angle in radians by which pair i of a token at position p turns: p * base ** (-2 i / head_dim).

    Su et al. 2021 (RoFormer), section 3.2.2.

    Raises:
        ValueError: head_dim is odd, the positions are not a row of integers, or base is not positive.

    >>> rope_angles(np.array([0, 5]), head_dim=4).round(3).tolist()
    [[0.0, 0.0], [5.0, 0.05]]
    """
    expect("positions", positions, ("n_tokens",))
    if not np.issubdtype(positions.dtype, np.integer):
        raise ValueError(f"positions: expected integers, got {positions.dtype}")
    if expect_count("head_dim", head_dim, 2) % 2:
        raise ValueError(f"head_dim must be even to be rotated in pairs, got {head_dim}")
    if not base > 0:
        raise ValueError(f"base must be positive, got {base}")
    frequencies = base ** (-np.arange(0, head_dim, 2) / head_dim)
    return positions[:, None] * frequencies[None, :]


def rotate(
    x: Float[np.ndarray, "n_heads n_tokens head_dim"],
    positions: Int[np.ndarray, "n_tokens"],
    base: float | int = 10000.0,
) -> Float[np.ndarray, "n_heads n_tokens head_dim"]:
    """Rotary position embedding, half-split pairing: channel i turns together with channel i + head_dim / 2.

    (a, b) -> (a cos t - b sin t, a sin t + b cos t) with t from `rope_angles`. Su et al. 2021 (RoFormer), section
    3.2.2, write interleaved pairs; Llama checkpoints as Hugging Face stores them use the half-split pairing of this
    function.

    Args:
        x: (n_heads, n_tokens, head_dim) queries or keys, floats.
        positions: (n_tokens,) ints, in any order.
        base: pair i turns by base ** (-2 i / head_dim) radians a token, the first pair by 1 whatever the base.

    Returns:
        The same shape and dtype; position 0 comes back unchanged.

    Raises:
        ValueError: shapes that do not fit, an odd head_dim, positions that are not integers, x that is not floats.

    >>> x = np.ones((1, 2, 4))
    >>> bool(np.array_equal(rotate(x, np.array([0, 0])), x))
    True
    """
    size = expect("x", x, ("n_heads", "n_tokens", "head_dim"))
    expect("positions", positions, ("n_tokens",), n_tokens=size["n_tokens"])
    if not np.issubdtype(x.dtype, np.floating):  # cos and sin would be cut to 0, 1 and -1
        raise ValueError(f"x: expected floats, got {x.dtype}")
    angles = rope_angles(positions, size["head_dim"], base)
    cos, sin = np.cos(angles).astype(x.dtype), np.sin(angles).astype(x.dtype)
    first, second = np.split(x, 2, axis=-1)
    return np.concatenate([first * cos - second * sin, first * sin + second * cos], axis=-1)


def alibi_slopes(n_heads: int) -> Float[np.ndarray, "n_heads"]:
    """The slope of each head: 2 ** (-8 (h + 1) / n_heads), for a number of heads that is a power of two.

    Press, Smith, Lewis 2022 (ALiBi), section 3.

    Raises:
        ValueError: n_heads is not a power of two (the paper's rule for other counts is not used in the course).

    >>> alibi_slopes(8)[:2].tolist()
    [0.5, 0.25]
    """
    expect_count("n_heads", n_heads, 1)
    if n_heads & (n_heads - 1):
        raise ValueError(f"alibi_slopes: n_heads must be a power of two, got {n_heads}")
    return 2.0 ** (-8.0 * np.arange(1, n_heads + 1) / n_heads)


def alibi_bias(n_heads: int, n_new: int, n_total: int) -> Float[np.ndarray, "n_heads n_new n_total"]:
    """What ALiBi adds to the scores: -slope * distance from the query back to the key.

    Only the distance enters, so the stored keys know nothing of positions. Entries ahead of the query are positive
    and meaningless: the causal mask hides them. Press, Smith, Lewis 2022 (ALiBi), section 3.

    Args:
        n_heads: query heads, a power of two.
        n_new, n_total: `n_new` queries at the end of `n_total` keys, as in `offset_mask`.

    Returns:
        (n_heads, n_new, n_total) float64.

    Raises:
        ValueError: n_heads is not a power of two, negative counts, more new tokens than tokens in all.

    >>> alibi_bias(2, 1, 3)[0].tolist()
    [[-0.125, -0.0625, 0.0]]
    """
    expect_count("n_new", n_new)
    expect_count("n_total", n_total)
    if n_new > n_total:
        raise ValueError(f"alibi_bias: {n_new} new tokens cannot be among {n_total} in all")
    steps_ahead = np.arange(n_total)[None, :] - np.arange(n_total - n_new, n_total)[:, None]
    return alibi_slopes(n_heads)[:, None, None] * steps_ahead
