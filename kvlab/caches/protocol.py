"""What a decoder layer needs of a cache, and the one place that evens out the forms in which caches answer."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float

from kvlab.masks import visible
from kvlab.shapes import expect

New = Float[np.ndarray, "n_kv_heads n_new head_dim"]
Stored = Float[np.ndarray, "n_kv_heads n_total head_dim"]


@runtime_checkable
class Cache(Protocol):
    """What a decoder layer needs of a cache. One cache a layer, one row set a sequence."""

    def append(self, k_new: New, v_new: New) -> tuple[Stored, Stored]:
        """Store (n_kv_heads, n_new, head_dim) keys and values; return all (k, v), oldest first.

        A cache that evicts returns their positions too, and a paged one None: `attendable` evens that out.
        """
        ...

    def __len__(self) -> int:
        """The tokens this sequence has seen: the index of the next one."""
        ...

    def reset(self) -> None:
        """Forget every token; storage may be kept."""
        ...

    @property
    def n_bytes(self) -> int:
        """Bytes of storage held now, filled or not."""
        ...


class Attendable(NamedTuple):
    """Keys and values, each (n_kv_heads, n_rows, head_dim), and which rows each new query may see.

    mask: (n_new, n_rows) bool; None where every row is stored, which is the offset causal mask.
    """

    k: np.ndarray
    v: np.ndarray
    mask: Bool[np.ndarray, "n_new n_rows"] | None


def attendable(cache: Any, k_new: New, v_new: New) -> Attendable:
    """Append to any cache of the course, yours or the package's, and return what attention needs.

    Three forms of answer are understood: (k, v), all rows; (k, v, positions) of a cache that evicts and has a `window`
    and, if it keeps first tokens, `n_sinks`; and None of a paged cache, whose rows come from `gather()`.

    Args:
        cache: has `append(k_new, v_new)` and `len`, the tokens seen so far.
        k_new, v_new: (n_kv_heads, n_new, head_dim).

    Raises:
        ValueError: the cache answers in another form, or with positions although it has no `window`.
    """
    n_past = len(cache)
    k, v, *positions = rows_of(cache, "append", cache.append(k_new, v_new))
    if not positions:
        return Attendable(k, v, None)
    queries = np.arange(n_past, n_past + k_new.shape[1])
    return Attendable(k, v, visible(queries, positions[0], cache.window, getattr(cache, "n_sinks", 0)))


def rows_of(cache: Any, method: str, answer: Any) -> Sequence[Any]:
    """(k, v) or (k, v, positions) out of what `method` of a cache answered; ValueError for any other form."""
    if answer is None and hasattr(cache, "gather"):
        answer = cache.gather()
    name = f"{type(cache).__name__}.{method}"
    if not isinstance(answer, tuple | list) or len(answer) not in (2, 3):
        got = f"{type(answer).__name__} of {len(answer)}" if isinstance(answer, tuple | list) else type(answer).__name__
        raise ValueError(f"{name}: expected (k, v), (k, v, positions) or None with gather(), got {got}")
    if len(answer) == 3 and not hasattr(cache, "window"):
        raise ValueError(f"{name}: positions came back, so the cache needs an attribute `window` for the mask")
    return answer


def expect_rows(k_new: New, v_new: New, n_kv_heads: int, head_dim: int) -> int:
    """Check one append's arrays against the cache's shape; return n_new."""
    axes = ("n_kv_heads", "n_new", "head_dim")
    n_new = expect("k_new", k_new, axes, n_kv_heads=n_kv_heads, head_dim=head_dim)["n_new"]
    expect("v_new", v_new, axes, n_kv_heads=n_kv_heads, n_new=n_new, head_dim=head_dim)
    return n_new
