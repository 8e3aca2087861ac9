"""What a call of the decoder refuses, all of it before the first layer's cache takes a row."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kvlab.llama.config import LlamaConfig
from kvlab.shapes import expect


def expect_ints(name: str, ids: np.ndarray, **sizes: int) -> int:
    """Check that `ids` is one row of integers; return how many there are."""
    n_new = expect(name, ids, ("n_new",), **sizes)["n_new"]
    if not isinstance(ids, np.ndarray):
        raise ValueError(f"{name}: expected a NumPy array, got {type(ids).__name__}")
    if not np.issubdtype(ids.dtype, np.integer):
        raise ValueError(f"{name}: expected integers, got {ids.dtype}")
    return n_new


def expect_ids(config: LlamaConfig, low: int, high: int) -> None:
    if not 0 <= low <= high < config.vocab_size:
        raise ValueError(f"ids must be 0 to {config.vocab_size - 1}, got {low} to {high}")


def expect_context(config: LlamaConfig, n_past: int, n_new: int) -> None:
    """Refuse tokens beyond the positions the model was trained for."""
    if n_past + n_new > config.max_positions:
        raise ValueError(
            f"prompt: {n_past} cached and {n_new} new tokens are more than the model's context of "
            f"{config.max_positions}: shorten the prompt"
        )


def expect_positions(config: LlamaConfig, positions: np.ndarray, n_new: int) -> None:
    expect_ints("positions", positions, n_new=n_new)
    if n_new and not 0 <= positions.min() <= positions.max() < config.max_positions:
        raise ValueError(
            f"positions must be 0 to {config.max_positions - 1}, the model's context, "
            f"got {positions.min()} to {positions.max()}"
        )


def expect_mask(mask: np.ndarray, n_new: int, n_total: int, caches: Sequence[Any] | None) -> None:
    expect("mask", mask, ("n_new", "n_total"), n_new=n_new, n_total=n_total)
    if mask.dtype != bool:
        raise ValueError(f"mask: expected bool, True where the query may look, got {mask.dtype}")
    if not mask.any(axis=1).all():
        raise ValueError(f"mask: row {int(mask.any(axis=1).argmin())} is all False, each query needs a key")
    evicting = [type(cache).__name__ for cache in caches or () if hasattr(cache, "window")]
    if evicting:
        raise ValueError(f"mask: a {evicting[0]} evicts rows and brings its own mask, pass none")


def expect_caches(
    config: LlamaConfig, caches: Sequence[Any], n_new: int, method: str, store_none: Callable[[Any], Any]
) -> int:
    """Check the caches of all layers together, before any of them is given a row; return the tokens they hold.

    What cannot be seen from outside, such as a class of the learner's whose append raises, is not found here: then the
    layers before it hold the new tokens, and the next call refuses the unequal lengths.

    Args:
        config: of the model.
        caches: one a layer.
        n_new: tokens that are about to be stored.
        method: of a cache, by which they are: "append" or "update".
        store_none: appends no rows, of the model's shape and dtype, to a cache: an empty one that is of another shape
            refuses, and nobody has written anything yet.

    Raises:
        ValueError: not one cache a layer, one for two layers, no cache, another shape, too little room, unequal
            lengths.
        MemoryError: a pool that the layers share has too few free blocks for all of them.
    """
    if not isinstance(caches, Sequence):
        raise ValueError(f"caches: expected a list, one a layer, {config.n_layers}, got {type(caches)}")
    if len(caches) != config.n_layers:
        raise ValueError(f"caches: expected one a layer, {config.n_layers}, got {len(caches)}")
    for i, cache in enumerate(caches):
        _expect_cache(config, i, cache, method)
    if len({id(cache) for cache in caches}) < config.n_layers:
        raise ValueError(f"caches: expected {config.n_layers} caches, one a layer, the same one stands there twice")
    lengths = {len(cache) for cache in caches}
    if len(lengths) > 1:
        raise ValueError(
            f"caches: the layers must hold equally many tokens, got lengths {sorted(lengths)}: "
            "after a call that stopped half-way start with empty ones"
        )
    n_past = lengths.pop()
    if n_past == 0:
        for cache in caches:
            store_none(cache)
    for i, cache in enumerate(caches):
        room = getattr(cache, "max_len", None)
        if room is not None and n_past + n_new > room:
            raise ValueError(
                f"caches: layer {i} has {room} slots, {n_past} filled, and {n_new} new tokens do not fit: "
                "make the cache larger or reset it"
            )
    _expect_blocks([cache for cache in caches if hasattr(cache, "pool")], n_past, n_new)
    return n_past


def _expect_cache(config: LlamaConfig, i: int, cache: Any, method: str) -> None:
    """Check what layer i was given, as far as its class and its sizes, where it tells them, say."""
    kind = type(cache)
    if not hasattr(cache, method) or not hasattr(kind, "__len__"):
        raise ValueError(f"caches: layer {i} must have `{method}` and `len`, got {kind}")
    owner = getattr(cache, "pool", cache)  # a paged cache's sizes are its pool's
    for name in ("n_kv_heads", "head_dim"):
        wanted = getattr(config, name)
        if getattr(owner, name, wanted) != wanted:
            raise ValueError(f"caches: layer {i}: expected {name} {wanted}, got {getattr(owner, name)}")


def most_rows(caches: Sequence[Any]) -> float:
    """Rows before the new ones that the caches hand out at most: finite where they evict."""
    return max(getattr(cache, "window", math.inf) + getattr(cache, "n_sinks", 0) for cache in caches)


def _expect_blocks(caches: Sequence[Any], n_past: int, n_new: int) -> None:
    """A pool serves many layers: without this it could run dry with half of them written."""
    needed: dict[int, int] = {}
    for cache in caches if n_new else ():
        pool, table = cache.pool, cache.block_table
        copies = n_past % pool.block_size > 0 and pool.count(table[-1]) > 1
        n_more = -(-(n_past + n_new) // pool.block_size) - len(table)
        needed[id(pool)] = needed.get(id(pool), 0) + n_more + copies
        if needed[id(pool)] > pool.n_free:
            raise MemoryError(
                f"pool empty: {n_new} more tokens need at least {needed[id(pool)]} more blocks over the layers, "
                f"{pool.n_free} of {pool.n_blocks} are free: make the pool larger"
            )
