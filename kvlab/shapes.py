"""One way to refuse a wrong shape: say the axes expected, the shape received, and which sizes disagree."""

import operator
from collections.abc import Sequence
from typing import Any


def expect(name: str, array: Any, axes: Sequence[str | int], **sizes: int) -> dict[str, int]:
    """Check that `array` has the named axes; return the size of each.

    Args:
        name: what the caller calls the array, used in the message.
        array: anything with a `.shape` (NumPy or PyTorch).
        axes: a name an axis, or an int where the size is fixed.
        sizes: sizes already known for some of the names.

    Returns:
        The size of every named axis, those of `sizes` included.

    Raises:
        ValueError: the rank or a size differs; the message holds both shapes.

    >>> import numpy as np
    >>> expect("q", np.zeros((4, 3, 8)), ("n_heads", "n_new", "head_dim"))
    {'n_heads': 4, 'n_new': 3, 'head_dim': 8}
    >>> expect("k", np.zeros((4, 3, 8)), ("n_kv_heads", "n_total", "head_dim"), head_dim=16)
    Traceback (most recent call last):
    ...
    ValueError: k: expected shape (n_kv_heads, n_total, head_dim=16), got (4, 3, 8): head_dim is 8
    """
    known = dict(sizes)
    shape = getattr(array, "shape", None)
    if shape is None:
        raise ValueError(f"{name}: expected an array of shape {_format(axes, sizes)}, got {type(array).__name__}")
    if len(shape) != len(axes):
        raise ValueError(f"{name}: expected shape {_format(axes, sizes)}, got {tuple(shape)}: {len(shape)} axes")
    for axis, size in zip(axes, shape, strict=True):
        wanted = axis if isinstance(axis, int) else known.setdefault(axis, int(size))
        if size != wanted:
            label = f"axis of {axis}" if isinstance(axis, int) else axis
            raise ValueError(
                f"{name}: expected shape {_format(axes, sizes)}, got {tuple(shape)}: {label} is {size}"
                + ("" if axis in sizes or isinstance(axis, int) else f" and {wanted}")
            )
    return known


def expect_count(name: str, value: Any, least: int = 0) -> int:
    """Return `value` as an int if it is a whole number of at least `least`; else ValueError.

    >>> expect_count("n_new", -1)
    Traceback (most recent call last):
    ...
    ValueError: n_new: expected a whole number of at least 0, got -1
    """
    try:
        number = least - 1 if isinstance(value, bool) else operator.index(value)
    except TypeError:  # no whole number; an array of several, or of one, is none either
        number = least - 1
    if number < least:
        raise ValueError(f"{name}: expected a whole number of at least {least}, got {value!r}")
    return number


def expect_groups(n_heads: int, n_kv_heads: int) -> int:
    """Return the query heads a KV head serves; ValueError unless they divide evenly.

    >>> expect_groups(8, 2)
    4
    """
    if n_kv_heads < 1 or n_heads % n_kv_heads:
        raise ValueError(
            f"n_heads must be a multiple of n_kv_heads, got {n_heads} query heads and {n_kv_heads} KV heads"
        )
    return n_heads // n_kv_heads


def _format(axes: Sequence[str | int], sizes: dict[str, int]) -> str:
    names = [str(a) if isinstance(a, int) or a not in sizes else f"{a}={sizes[a]}" for a in axes]
    return "(" + ", ".join(names) + ("," if len(names) == 1 else "") + ")"
