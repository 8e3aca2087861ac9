"""What one run projected, stored, read and scored, step by step: the only input of the course's pictures."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np

from kvlab.shapes import expect_count

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

    def __init__(self, n_layers: int, n_kv_heads: int, head_dim: int, bytes_per_element: float) -> None:
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
        if not 0 <= layer < self.n_layers:
            raise ValueError(f"trace.count: layer must be 0 to {self.n_layers - 1}, got {layer}")
        counts = self.steps[-1].layers[layer]
        counts.projected += projected
        counts.stored += stored
        counts.read += read
        counts.scores += scores

    def total(self, quantity: Quantity, layer: int | None = None) -> int:
        """One quantity over the whole run, in one layer or summed over all.

        Raises:
            ValueError: an unknown quantity.
        """
        if quantity not in get_args(Quantity):
            raise ValueError(f"trace: quantity must be one of {', '.join(get_args(Quantity))}, got {quantity!r}")
        return sum(step.total(quantity, layer) for step in self.steps)

    def bytes(self, quantity: Literal["stored", "read"], layer: int | None = None) -> int:
        """Rows stored or read, in bytes: keys and values, all KV heads."""
        if quantity not in ("stored", "read"):
            raise ValueError(f"trace: only 'stored' and 'read' are rows that have bytes, got {quantity!r}")
        row_bytes = 2 * self.n_kv_heads * self.head_dim * self.bytes_per_element
        return int(self.total(quantity, layer) * row_bytes)

    def __repr__(self) -> str:
        return f"Trace of {len(self.steps)} steps over {self.n_layers} layers: " + ", ".join(
            f"{name} {self.total(name)}" for name in get_args(Quantity)
        )


class CountedWeight(np.ndarray):
    """A weight matrix that counts the token rows multiplied with it, whichever NumPy product does it.

    `x @ w`, `np.matmul`, `np.dot`, `np.tensordot` and `np.einsum` are seen. Results are plain arrays. It proves that
    a cache was used: equal outputs alone do not, since recomputing everything gives them too.

    >>> w = counted(np.ones((4, 3)))
    >>> (np.ones((5, 4)) @ w).shape, w.rows_seen
    ((5, 3), 5)
    """

    def __array_finalize__(self, obj: Any) -> None:
        self._counter: list[int] = getattr(obj, "_counter", [0])

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if ufunc is np.matmul:
            self._see(inputs)
        outputs = kwargs.pop("out", None)
        if outputs is not None:
            kwargs["out"] = tuple(map(_plain, outputs))
        return getattr(ufunc, method)(*map(_plain, inputs), **kwargs)

    def __array_function__(self, func: Callable[..., Any], types: Any, args: Any, kwargs: Any) -> Any:
        if func in (np.dot, np.tensordot, np.einsum):
            self._see(args)
            args = [_plain(a) for a in args]
            return func(*args, **kwargs)
        return super().__array_function__(func, types, args, kwargs)

    def dot(self, *args: Any, **kwargs: Any) -> Any:
        return np.dot(self, *args, **kwargs)

    def _see(self, operands: Any) -> None:
        others = [a for a in operands if isinstance(a, np.ndarray) and not isinstance(a, CountedWeight)]
        # All token axes together: every element of x belongs to a row of d_model channels.
        self._counter[0] += sum(a.size for a in others) // self.shape[0]

    @property
    def rows_seen(self) -> int:
        """Token rows multiplied with this weight, its views and transposes so far."""
        return self._counter[0]


def counted(w: np.ndarray) -> CountedWeight:
    """View a weight (d_model, width) as one that counts; its own counter starts at 0."""
    view = w.view(CountedWeight)
    view._counter = [0]
    return view


def _plain(a: Any) -> Any:
    return a.view(np.ndarray) if isinstance(a, CountedWeight) else a
