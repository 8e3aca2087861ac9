"""Masks beyond the causal one: windows and sinks, left padding, packed sequences. True where a query may look."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Int

from kvlab.shapes import expect, expect_count


def visible(
    query_positions: Int[np.ndarray, "n_new"],
    key_positions: Int[np.ndarray, "n_rows"],
    window: int | None = None,
    n_sinks: int = 0,
) -> Bool[np.ndarray, "n_new n_rows"]:
    """Which rows each query may see, by the positions of both: what a cache that evicts has to go by.

    key <= query, and query - key < window or key < n_sinks.

    Args:
        query_positions: (n_new,) position of each query.
        key_positions: (n_rows,) position of each row, in any order.
        window: tokens a query sees, itself included; None does not limit.
        n_sinks: first tokens of the sequence that every query sees besides.

    Raises:
        ValueError: positions that are no integers, a window below 1, a negative n_sinks.

    >>> visible(np.array([6]), np.array([0, 1, 4, 5, 6]), window=2, n_sinks=1).tolist()
    [[True, False, False, True, True]]
    """
    queries = _signed("query_positions", query_positions, "n_new")
    keys = _signed("key_positions", key_positions, "n_rows")
    expect_count("n_sinks", n_sinks)
    distance = queries[:, None] - keys[None, :]
    if window is None:
        return distance >= 0
    near = distance < expect_count("window", window, 1)
    return (distance >= 0) & (near | (keys < n_sinks)[None, :])


def window_mask(n_new: int, n_total: int, window: int) -> Bool[np.ndarray, "n_new n_total"]:
    """Sliding-window causal mask: a query sees itself and the window - 1 tokens before it.

    Raises:
        ValueError: negative counts, more new tokens than tokens in all, a window below 1.

    >>> window_mask(2, 4, window=2).astype(int).tolist()
    [[0, 1, 1, 0], [0, 0, 1, 1]]
    """
    at = _positions("window_mask", n_new, n_total)
    return visible(at[n_total - n_new :], at, window)


def pad_positions(attention_mask: Int[np.ndarray, "batch n"]) -> Int[np.ndarray, "batch n"]:
    """Position ids of a left-padded batch: the first real token of each row stands at 0; pads get 0.

    Args:
        attention_mask: (batch, n), 1 for a token and 0 for a pad, pads first, at least one token a row.

    Raises:
        ValueError: another shape, other values, a pad after a token, a row without a token.

    >>> pad_positions(np.array([[0, 0, 1, 1], [1, 1, 1, 1]])).tolist()
    [[0, 0, 0, 1], [0, 1, 2, 3]]
    """
    return np.maximum(_left_padded(attention_mask).cumsum(axis=1) - 1, 0)


def ragged_mask(
    attention_mask: Int[np.ndarray, "batch n_total"], n_new: int
) -> Bool[np.ndarray, "batch n_new n_total"]:
    """Offset causal mask of each row of a left-padded batch, pads hidden, for the last n_new columns as queries.

    A query that is a pad itself sees only itself: a row with nothing to see has no softmax (0/0).

    Args:
        attention_mask: (batch, n_total), 1 for a token and 0 for a pad, pads first, at least one token a row; the
            cached columns and the new ones.
        n_new: columns at the end whose tokens are queries.

    Raises:
        ValueError: another shape, other values, a pad after a token, a row without a token, more new tokens than
            columns.

    >>> ragged_mask(np.array([[0, 1, 1]]), n_new=2).astype(int).tolist()
    [[[0, 1, 0], [0, 1, 1]]]
    """
    real = _left_padded(attention_mask).astype(bool)
    n_total = real.shape[1]
    at = _positions("ragged_mask", n_new, n_total)
    queries = at[n_total - n_new :, None]
    # A token sees itself anyway; before a pad there are only pads, so for a pad nothing else is left.
    return (at <= queries) & real[:, None, :] | (at == queries)


def packed_mask(lengths: Sequence[int] | Int[np.ndarray, "n_sequences"]) -> Bool[np.ndarray, "n n"]:
    """Sequences one after another in one row: causal inside each, nothing across.

    Args:
        lengths: tokens of each sequence, in order; 0 is allowed and adds nothing.

    Returns:
        (n, n) with n the sum of the lengths.

    Raises:
        ValueError: a negative length, lengths that are no row of counts.

    >>> packed_mask([1, 2]).astype(int).tolist()
    [[1, 0, 0], [0, 1, 0], [0, 1, 1]]
    """
    if np.ndim(lengths) != 1:
        raise ValueError(f"lengths: expected a row of counts, got {lengths!r}")
    counts = [expect_count(f"lengths[{i}]", length) for i, length in enumerate(lengths)]
    sequence = np.repeat(np.arange(len(counts)), counts)
    at = np.arange(len(sequence))
    return (at[None, :] <= at[:, None]) & (sequence[None, :] == sequence[:, None])


def _signed(name: str, positions: Int[np.ndarray, "n"], axis: str) -> Int[np.ndarray, "n"]:
    """Positions whose differences may be negative: those of unsigned ints would wrap around."""
    expect(name, positions, (axis,))
    if not np.issubdtype(positions.dtype, np.integer):
        raise ValueError(f"{name}: expected integers, got {positions.dtype}")
    return positions.astype(np.int64, copy=False)


def _positions(name: str, n_new: int, n_total: int) -> Int[np.ndarray, "n_total"]:
    """0 .. n_total - 1, after checking that n_new of them can be the last ones."""
    expect_count("n_new", n_new)
    expect_count("n_total", n_total)
    if n_new > n_total:
        raise ValueError(f"{name}: {n_new} new tokens cannot be among {n_total} in all: pass past + new as n_total")
    return np.arange(n_total)


def _left_padded(attention_mask: Int[np.ndarray, "batch n"]) -> Int[np.ndarray, "batch n"]:
    """The mask as ints, after checking that each row is pads, then at least one token."""
    mask = np.asarray(attention_mask)
    expect("attention_mask", mask, ("batch", "n"))
    if not np.isin(mask, (0, 1)).all():
        raise ValueError(f"attention_mask: expected 1 for a token and 0 for a pad, got {np.unique(mask)[:5].tolist()}")
    mask = mask.astype(np.int64)
    right = (np.diff(mask, axis=1) < 0).any(axis=1)
    if right.any():
        raise ValueError(
            f"attention_mask: row {int(right.argmax())} has a pad after a token, expected pads on the left"
        )
    empty = ~mask.any(axis=1)
    if empty.any():
        raise ValueError(
            f"attention_mask: row {int(empty.argmax())} of {mask.shape[1]} columns has no token, "
            "expected at least one: leave the row out of the batch"
        )
    return mask
