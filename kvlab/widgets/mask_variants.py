"""Masks that MaskDiagram draws by name: a window, sinks before it, left padding, packed sequences."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Bool

from kvlab.attention import offset_mask
from kvlab.shapes import expect_count

Mask = Bool[np.ndarray, "n_new n_total"]


def _window(n_new: int, n_total: int, window: int) -> Mask:
    """A query sees itself and the window - 1 tokens before it."""
    expect_count("window", window, 1)
    at = np.arange(n_total)
    return offset_mask(n_new, n_total) & (at[n_total - n_new :, None] - at < window)


def _sinks(n_new: int, n_total: int, window: int, n_sinks: int) -> Mask:
    """A window, and the first n_sinks tokens besides."""
    first = np.arange(n_total) < expect_count("n_sinks", n_sinks)
    return _window(n_new, n_total, window) | (offset_mask(n_new, n_total) & first)


def _left_padding(n_new: int, n_total: int, n_pad: int) -> Mask:
    """The first n_pad keys are hidden; a query that is a pad itself sees only itself, so that its row is not empty."""
    if expect_count("n_pad", n_pad) >= n_total:
        raise ValueError(f"n_pad: {n_pad} pads leave no token of {n_total}")
    at = np.arange(n_total)
    itself = at[n_total - n_new :, None] == at
    return (offset_mask(n_new, n_total) & (at >= n_pad)) | itself


def _packed(n_new: int, n_total: int, length: int) -> Mask:
    """Sequences of `length` tokens one after another in one row: causal inside each, nothing across."""
    of = np.arange(n_total) // expect_count("length", length, 1)
    return offset_mask(n_new, n_total) & (of[n_total - n_new :, None] == of)


VARIANTS: dict[str, Callable[..., Mask]] = {
    "causal": offset_mask,
    "window": _window,
    "sinks": _sinks,
    "left padding": _left_padding,
    "packed": _packed,
}
