"""What a PyTorch decoder layer needs of a cache, and the one place that evens out the forms in which caches answer."""

from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int

from kvlab.caches.protocol import rows_of
from kvlab.shapes import expect, expect_count

Rows = Float[torch.Tensor, "batch n_kv_heads n_new head_dim"]
AnyRows = Float[torch.Tensor, "batch n_kv_heads _ head_dim"]  # of a past, or of a past and the new tokens
Pair = tuple[AnyRows, AnyRows]

AXES = ("batch", "n_kv_heads", "n_new", "head_dim")


@runtime_checkable
class TorchCache(Protocol):
    """What a PyTorch decoder layer needs of a cache. One cache a layer, one row of the batch a sequence."""

    def update(self, k: Rows, v: Rows) -> Pair:
        """Store (batch, n_kv_heads, n_new, head_dim) keys and values; return all (k, v), oldest first.

        A cache that evicts returns their positions too, and a paged one None: `attendable` evens that out.
        """
        ...

    def __len__(self) -> int:
        """The tokens each sequence has seen: the index of the next one."""
        ...

    def reset(self) -> None:
        """Forget every token; storage may be kept."""
        ...

    @property
    def n_bytes(self) -> int:
        """Bytes of storage held now, filled or not."""
        ...


class Attendable(NamedTuple):
    """Keys and values, each (batch, n_kv_heads, n_rows, head_dim), and which rows each new query may see.

    mask: (n_new, n_rows) bool, True where the query may look, the same for the whole batch: it broadcasts over (batch,
        n_heads, n_new, n_rows). None where every row is stored, which is the offset causal mask.
    """

    k: AnyRows
    v: AnyRows
    mask: Bool[torch.Tensor, "n_new n_rows"] | None


def attendable(cache: Any, k: Rows, v: Rows) -> Attendable:
    """Update any PyTorch cache of the course, yours or the package's, and return what attention needs.

    The twin of `kvlab.caches.attendable`. Three forms of answer are understood: (k, v), all rows; (k, v, positions) of
    a cache that evicts and has a `window` and, if it keeps first tokens, `n_sinks`; and None of a paged cache, whose
    rows come from `gather()`.

    Args:
        cache: has `update(k, v)` and `len`, the tokens seen so far.
        k, v: (batch, n_kv_heads, n_new, head_dim).

    Returns:
        (k, v, mask). The tensors may be views into the cache, good until its next update or reset. A mask goes to
        scaled_dot_product_attention as attn_mask; None is *not* its `is_causal`, which is aligned to the first key.

    Raises:
        ValueError: the cache answers in another form, or with positions although it has no `window`; or it refuses.

    >>> from kvlab.torch_caches import RingCache
    >>> cache = RingCache(batch=1, n_kv_heads=2, head_dim=4, window=2)
    >>> k, v, mask = attendable(cache, torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 3, 4))
    >>> tuple(k.shape), mask.int().tolist()
    ((1, 2, 3, 4), [[1, 0, 0], [1, 1, 0], [0, 1, 1]])
    """
    n_past = len(cache)
    keys, values, *positions = rows_of(cache, "update", cache.update(k, v))
    if not positions:
        return Attendable(keys, values, None)
    queries = torch.arange(n_past, n_past + k.shape[2], device=k.device)
    return Attendable(keys, values, visible(queries, positions[0], cache.window, getattr(cache, "n_sinks", 0)))


def visible(
    query_positions: Int[torch.Tensor, "n_new"],
    key_positions: Int[torch.Tensor, "n_rows"],
    window: int | None = None,
    n_sinks: int = 0,
) -> Bool[torch.Tensor, "n_new n_rows"]:
    """Which rows each query may see, by the positions of both: `kvlab.masks.visible` in PyTorch.

    key <= query, and query - key < window or key < n_sinks.

    Raises:
        ValueError: a window below 1, a negative n_sinks.

    >>> visible(torch.tensor([6]), torch.tensor([0, 1, 4, 5, 6]), window=2, n_sinks=1).tolist()
    [[True, False, False, True, True]]
    """
    expect("query_positions", query_positions, ("n_new",))
    expect("key_positions", key_positions, ("n_rows",))
    expect_count("n_sinks", n_sinks)
    distance = query_positions[:, None] - key_positions[None, :]
    if window is None:
        return distance >= 0
    near = distance < expect_count("window", window, 1)
    return (distance >= 0) & (near | (key_positions < n_sinks)[None, :])


def expect_alike(name: str, tensor: torch.Tensor, like: torch.Tensor) -> None:
    """torch.cat and slice assignment convert dtypes without a word; a cache must not."""
    if (tensor.dtype, tensor.device) != (like.dtype, like.device):
        raise ValueError(f"{name}: expected {like.dtype} on {like.device}, got {tensor.dtype} on {tensor.device}")


def expect_rows(k: Rows, v: Rows, like: torch.Tensor | None = None, **sizes: int) -> int:
    """Check one update's tensors against the cache's sizes and, where it has one, its storage; return n_new."""
    size = expect("k", k, AXES, **sizes)
    expect("v", v, AXES, **size)
    expect_alike("k", k, k if like is None else like)
    expect_alike("v", v, k if like is None else like)
    if not k.is_floating_point():
        raise ValueError(f"k: expected floats, got {k.dtype}")
    return size["n_new"]
