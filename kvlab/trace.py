"""What one run projected, stored, read and scored, step by step: the only input of the course's pictures."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Float

from kvlab.shapes import expect, expect_count

Quantity = Literal["projected", "stored", "read", "scores"]


@dataclass
class LayerCounts:
    """What one attention layer did in one step.

    projected: tokens sent through the key and value projections.
    stored: rows newly written to the cache (0 without a cache).
    read: rows of keys (and as many of values) that attention read.
    scores: dense score entries a query head computed, n_new * n_total.
    """

    projected: int = 0
    stored: int = 0
    read: int = 0
    scores: int = 0


@dataclass
class Step:
    """One call of the model: `n_new` tokens went in while `n_past` were cached."""

    n_new: int
    n_past: int
    layers: list[LayerCounts] = field(default_factory=list)

    def total(self, quantity: Quantity, layer: int | None = None) -> int:
        """One quantity of this step, in one layer or summed over all."""
        layers = self.layers if layer is None else [self.layers[layer]]
        return sum(getattr(counts, quantity) for counts in layers)


class Trace:
    """A run as a list of steps. A decoder that is given one reports to it; see `kvlab.decoder`.

    Args:
        n_layers, n_kv_heads, head_dim: the shape of the model's cache.
        bytes_per_element: of one stored number, 0.5 for 4 bits.

    >>> trace = Trace(n_layers=2, n_kv_heads=2, head_dim=8, bytes_per_element=2)
    >>> trace.begin(n_new=5, n_past=0)
    >>> for layer in range(2):
    ...     trace.count(layer, projected=5, stored=5, read=5, scores=25)
    >>> trace.total("projected", layer=0), trace.bytes("stored")
    (5, 640)
    """

    def __init__(self, n_layers: int, n_kv_heads: int, head_dim: int, bytes_per_element: float | int) -> None:
        self.n_layers = expect_count("n_layers", n_layers, 1)
        self.n_kv_heads = expect_count("n_kv_heads", n_kv_heads, 1)
        self.head_dim = expect_count("head_dim", head_dim, 1)
        self.bytes_per_element = bytes_per_element
        self.steps: list[Step] = []

    def begin(self, n_new: int, n_past: int) -> None:
        """Open the next step."""
        counts = [LayerCounts() for _ in range(self.n_layers)]
        self.steps.append(Step(expect_count("n_new", n_new), expect_count("n_past", n_past), counts))

    def count(self, layer: int, *, projected: int = 0, stored: int = 0, read: int = 0, scores: int = 0) -> None:
        """Add to the open step's counts of one layer.

        Raises:
            ValueError: no step is open, or there is no such layer.
        """
        if not self.steps:
            raise ValueError("trace.count: no step is open, call begin(n_new, n_past) first")
        self._expect_layer(layer)
        counts = self.steps[-1].layers[layer]
        counts.projected += projected
        counts.stored += stored
        counts.read += read
        counts.scores += scores

    def total(self, quantity: Quantity, layer: int | None = None) -> int:
        """One quantity over the whole run, in one layer or summed over all.

        Raises:
            ValueError: an unknown quantity, or no such layer.
        """
        if quantity not in get_args(Quantity):
            raise ValueError(f"trace: quantity must be one of {', '.join(get_args(Quantity))}, got {quantity!r}")
        if layer is not None:
            self._expect_layer(layer)
        return sum(step.total(quantity, layer) for step in self.steps)

    def bytes(self, quantity: Literal["stored", "read"], layer: int | None = None) -> int:
        """Rows stored or read, in bytes: keys and values, all KV heads."""
        if quantity not in ("stored", "read"):
            raise ValueError(f"trace: only 'stored' and 'read' are rows that have bytes, got {quantity!r}")
        row_bytes = 2 * self.n_kv_heads * self.head_dim * self.bytes_per_element
        return int(self.total(quantity, layer) * row_bytes)

    def _expect_layer(self, layer: int) -> None:
        if not 0 <= layer < self.n_layers:
            raise ValueError(f"trace: layer must be 0 to {self.n_layers - 1}, got {layer}")

    def __repr__(self) -> str:
        return f"Trace of {len(self.steps)} steps over {self.n_layers} layers: " + ", ".join(
            f"{name} {self.total(name)}" for name in get_args(Quantity)
        )


class CountedWeight(np.ndarray):
    """A weight matrix that counts the token rows multiplied with it, whichever NumPy product does it.

    Seen are `x @ w`, `np.matmul`, `np.dot`, `np.inner`, `np.tensordot` and `np.einsum`, on either side, transposed,
    sliced or scaled. What is counted are multiply-adds, and `rows_seen` divides them by those of one whole row, so that
    a weight used in slices, one head at a time, counts each token once. Results are plain arrays.

    It proves that a cache was used: equal outputs alone do not, since recomputing everything gives them too.

    Not seen, because NumPy turns the weight into a plain array without asking: `np.asarray(w)`, `np.array(w)`,
    `np.concatenate([w, ...])` and the method `x.dot(w)`. Nor are element-by-element products summed by hand.
    0 rows beside a right answer says that one of these was used.

    >>> w = counted(np.ones((4, 3)))
    >>> (np.ones((5, 4)) @ w).shape, w.rows_seen
    ((5, 3), 5)
    """

    __array_priority__ = -1.0  # what NumPy makes of a weight and a plain array on its own is a plain array
    _multiply_adds: list[int]
    _row_cost: int

    def __array_finalize__(self, obj: Any) -> None:
        # Views, transposes and copies of a weight count into the tally of the whole weight.
        self._multiply_adds = getattr(obj, "_multiply_adds", [0])
        self._row_cost = getattr(obj, "_row_cost", self.size)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if kwargs.get("out"):
            kwargs["out"] = tuple(map(_plain, kwargs["out"]))
        result = getattr(ufunc, method)(*map(_plain, inputs), **kwargs)
        if ufunc.__name__ in ("matmul", "matvec", "vecmat", "vecdot"):
            self._see(inputs, np.size(result) * np.shape(inputs[0])[-1])
        elif method == "__call__" and np.shape(result) == self.shape:  # scaled or shifted: still this weight
            result = result.view(CountedWeight)
            result.__array_finalize__(self)
        return result

    def __array_function__(self, func: Callable[..., Any], types: Any, args: Any, kwargs: Any) -> Any:
        if func not in (np.dot, np.inner, np.tensordot, np.einsum):
            return super().__array_function__(func, types, args, kwargs)
        result = func(*map(_plain, args), **{name: _plain(a) for name, a in kwargs.items()})
        if func is np.einsum:
            self._see(args, _einsum_multiply_adds(args))
        else:
            a, b = (*args, *(kwargs[name] for name in ("a", "b") if name in kwargs))[:2]
            # With sizes rows * inner, inner * width and rows * width, this is rows * inner * width.
            self._see((a, b), math.isqrt(np.size(a) * np.size(b) * np.size(result)) if np.ndim(a) and np.ndim(b) else 0)
        return result

    def dot(self, *args: Any, **kwargs: Any) -> Any:
        return np.dot(self, *args, **kwargs)

    def _see(self, operands: Any, multiply_adds: int) -> None:
        # A product of two weights holds no token.
        if sum(isinstance(a, CountedWeight) for a in operands) == 1:
            self._multiply_adds[0] += multiply_adds

    @property
    def rows_seen(self) -> int:
        """Token rows multiplied with this weight, its views and transposes so far."""
        return self._multiply_adds[0] // self._row_cost


def counted(w: Float[np.ndarray, "d_model width"]) -> CountedWeight:
    """View a weight (d_model, width) as one that counts; its own tally starts at 0.

    Raises:
        ValueError: not a matrix, or an empty one.
    """
    if 0 in expect("w", w, ("d_model", "width")).values():
        raise ValueError(f"counted: a weight of shape {w.shape} is empty, there is nothing to multiply with")
    view = w.view(CountedWeight)
    view._multiply_adds, view._row_cost = [0], w.size
    return view


def _plain(a: Any) -> Any:
    return a.view(np.ndarray) if isinstance(a, CountedWeight) else a


def _einsum_multiply_adds(args: Sequence[Any]) -> int:
    """The product of the sizes of all labels, for einsum("nd,dw->nw", x, w) and einsum(x, [0, 1], w, [1, 2])."""
    if isinstance(args[0], str):
        terms: Sequence[Any] = args[0].replace(" ", "").replace("...", "…").split("->")[0].split(",")
        operands = args[1:]
    else:
        terms, operands = args[1::2], args[0::2]
    if len(terms) > 2:
        raise ValueError(
            f"counted: an einsum of {len(terms)} operands has no one order of products to count, "
            "multiply with the weight in a call of its own"
        )
    if len(terms) == 1:  # a transpose, a sum: nothing is multiplied
        return 0
    sizes: dict[Any, int] = {}
    for term, operand in zip(terms, operands, strict=False):  # the second form may end with the output's labels
        labels: list[Any] = ["…" if label is Ellipsis else label for label in term]
        if "…" in labels:
            n_more = np.ndim(operand) - len(labels) + 1
            at = labels.index("…")
            labels[at : at + 1] = [("…", i) for i in range(n_more, 0, -1)]
        for label, size in zip(labels, np.shape(operand), strict=True):
            sizes[label] = size if sizes.get(label, 1) == 1 else sizes[label]
    return math.prod(sizes.values())
