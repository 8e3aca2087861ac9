"""Masks that MaskDiagram draws by name: a window, sinks before it, left padding, packed sequences."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Bool

from kvlab.attention import offset_mask
from kvlab.masks import packed_mask, ragged_mask, visible, window_mask
from kvlab.shapes import expect_count

Mask = Bool[np.ndarray, "n_new n_total"]


def _sinks(n_new: int, n_total: int, window: int, n_sinks: int) -> Mask:
    """A window, and the first n_sinks tokens besides."""
    window_mask(n_new, n_total, window)  # refuses counts that do not fit
    at = np.arange(n_total)
    return visible(at[n_total - n_new :], at, window, n_sinks)


def _left_padding(n_new: int, n_total: int, n_pad: int) -> Mask:
    """The first n_pad keys are hidden; a query that is a pad itself sees only itself, so that its row is not empty."""
    if expect_count("n_pad", n_pad) >= n_total:
        raise ValueError(f"n_pad: {n_pad} pads leave no token of {n_total}")
    return ragged_mask((np.arange(n_total) >= n_pad).astype(int)[None], n_new)[0]


def _packed(n_new: int, n_total: int, length: int) -> Mask:
    """Sequences of `length` tokens one after another in one row, the last one perhaps cut short."""
    whole, rest = divmod(n_total, expect_count("length", length, 1))
    offset_mask(n_new, n_total)  # refuses counts that do not fit
    return packed_mask([length] * whole + [rest])[n_total - n_new :]


VARIANTS: dict[str, Callable[..., Mask]] = {
    "causal": offset_mask,
    "window": window_mask,
    "sinks": _sinks,
    "left padding": _left_padding,
    "packed": _packed,
}
