"""Beam search with a cache: beams change places at every step, and their keys and values go with them.

A `step(tokens, cache) -> (log_probs, cache)` is all that the search knows of a model. What the cache is made of is the
business of `step` and of `reorder` alone: (k, v) arrays that are copied, or block tables that share blocks.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from kvlab.caches import ConcatCache, PagedCache
from kvlab.caches.paged import BlockPool
from kvlab.shapes import expect, expect_count

Rows = Float[np.ndarray, "n_beams n_kv_heads n_total head_dim"]
Pairs = list[tuple[np.ndarray, np.ndarray]]
Tables = list[list[PagedCache]]
BeamIndex = Sequence[int] | Int[np.ndarray, "n_next"]
Step = Callable[[Int[np.ndarray, "n n_fed"], Any], tuple[Float[np.ndarray, "n vocab"], Any]]


def log_softmax(logits: Float[np.ndarray, "*batch vocab"]) -> Float[np.ndarray, "*batch vocab"]:
    """log(softmax(logits)) over the last axis, without ever forming a probability that could underflow to 0.

    >>> log_softmax(np.array([0.0, 0.0, -2000.0])).round(3).tolist()
    [-0.693, -0.693, -2000.693]
    """
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def reorder_cache(cache: Sequence[tuple[Rows, Rows]], beam_index: BeamIndex) -> Pairs:
    """Give each new beam its own copy of the keys and values of the beam it goes on from.

    Row i of the new cache is row beam_index[i] of the old one, in every layer, keys and values alike.

    Args:
        cache: (k, v) a layer, each (n_beams, n_kv_heads, n_total, head_dim).
        beam_index: (n_next,) ints; an entry may repeat or be missing, and n_next may differ from n_beams. After the
            prompt, which is one row, it is all zeros.

    Returns:
        (k, v) a layer, each (n_next, n_kv_heads, n_total, head_dim): new arrays, no two rows share memory.

    Raises:
        ValueError: an entry that is no beam of the cache, keys and values of another number of beams, a layer that is
            no (k, v).

    >>> k = np.array([1.0, 2.0]).reshape(2, 1, 1, 1)
    >>> [(k_new, v_new)] = reorder_cache([(k, 10 * k)], [1, 1, 0])
    >>> k_new.ravel().tolist(), v_new.ravel().tolist()
    ([2.0, 2.0, 1.0], [20.0, 20.0, 10.0])
    """
    axes = ("n_beams", "n_kv_heads", "n_total", "head_dim")
    sizes: dict[str, int] = {}
    for layer, rows in enumerate(cache):
        if len(rows) != 2:
            raise ValueError(f"cache of layer {layer}: expected (k, v), got {len(rows)} of them")
        k, v = rows
        known = {name: sizes[name] for name in ("n_beams",) if name in sizes}
        sizes = expect(f"k of layer {layer}", k, axes, **known)
        expect(f"v of layer {layer}", v, (*axes[:3], "v_dim"), **{name: sizes[name] for name in axes[:3]})
    index = _expect_beams(beam_index, sizes.get("n_beams"))
    return [(k[index], v[index]) for k, v in cache]


def reorder_tables(tables: Tables, beam_index: BeamIndex) -> Tables:
    """The same through block tables: a beam that goes on is forked, and the old ones are let go. No row is copied.

    Every fork comes before the first free, so that no block is handed back while a new beam still needs it. A block is
    copied later, when a beam writes into one that others hold too.

    Args:
        tables: for each beam one PagedCache a layer.
        beam_index: (n_next,) ints; empty lets go of everything.

    Raises:
        ValueError: an entry that is no beam; nothing is forked or freed then.
    """
    index = _expect_beams(beam_index, len(tables))
    forked = [[cache.fork() for cache in tables[beam]] for beam in index]
    for beam in tables:
        for cache in beam:
            cache.free()
    return forked


def beam_search(
    step: Step,
    prompt: Int[np.ndarray, "n_prompt"],
    n_beams: int,
    n_new: int,
    reorder: Callable[[Any, Any], Any] = reorder_cache,
) -> tuple[Int[np.ndarray, "{n_beams} {n_new}"], Float[np.ndarray, "{n_beams}"]]:
    """The n_beams likeliest continuations found by keeping the n_beams best at every step.

    score = sum of the log-probabilities of a continuation's tokens. Every step extends all beams by all tokens and
    keeps the best; of equal scores the lower beam comes first, then the lower token id. The prompt goes in once, as one
    row, and then one token a beam and step. While there are fewer continuations than n_beams, all of them go on.

    Exact for n_beams of at least vocab ** (n_new - 1), greedy for 1, and no promise in between.

    Args:
        step: step(tokens (n, n_fed), cache) -> (log_probs (n, vocab) of the token that follows each row, cache). The
            cache is None at first; n is 1 for the prompt, then the number of beams.
        prompt: (n_prompt,) ids, at least one.
        n_beams: continuations kept.
        n_new: tokens of each.
        reorder: reorder(cache, beam_index) -> cache whose beam i is the old one's beam_index[i]. Called after each
            step, the last time with an empty beam_index: the search keeps nothing.

    Returns:
        (tokens, scores): (n_beams, n_new) ids and (n_beams,) floats, best first. n_new of 0 calls no step and gives
        n_beams empty rows of score 0.

    Raises:
        ValueError: an empty prompt or one that is no ints, no beam, log_probs of another shape or with nan or +inf,
            more beams than there are continuations (vocab ** n_new).
    """
    expect_count("n_beams", n_beams, 1)
    expect_count("n_new", n_new)
    if len(_expect_integers("prompt", prompt, "n_prompt")) == 0:
        raise ValueError("beam_search: the prompt is empty, give it at least one token")
    if n_new == 0:
        return np.zeros((n_beams, 0), np.int64), np.zeros(n_beams)
    tokens, scores = np.zeros((1, 0), np.int64), np.zeros(1)
    fed, cache = prompt[None, :], None
    for i in range(n_new):
        log_probs, cache = step(fed, cache)
        _expect_log_probs(log_probs, len(fed), n_beams, n_new)
        totals = scores[:, None] + log_probs
        # Stable, and row by row: of equal totals the lower beam, then the lower id, comes first.
        best = np.argsort(-totals, axis=None, kind="stable")[:n_beams]
        beam_index, ids = np.unravel_index(best, totals.shape)
        tokens = np.concatenate([tokens[beam_index], ids[:, None]], axis=1)
        scores = totals[beam_index, ids]
        cache = reorder(cache, beam_index if i + 1 < n_new else beam_index[:0])
        fed = ids[:, None]
    return tokens, scores


def copied_step(model: Any) -> Step:
    """A step over (k, v) arrays, for `reorder_cache`, from a decoder of one sequence such as TinyDecoder.

    >>> from kvlab.decoder import TinyDecoder
    >>> tokens, scores = beam_search(copied_step(TinyDecoder()), np.array([3, 1, 4]), n_beams=2, n_new=3)
    >>> tokens.shape
    (2, 3)
    """

    def step(tokens: np.ndarray, cache: Pairs | None) -> tuple[np.ndarray, Pairs]:
        beams = [_filled(model.make_caches(), cache, i) for i in range(len(tokens))]
        log_probs = _each(model, tokens, beams)
        rows = [[one.append(*_nothing(one)) for one in beam] for beam in beams]
        layers = zip(*rows, strict=True)
        return log_probs, [(np.stack([k for k, _ in layer]), np.stack([v for _, v in layer])) for layer in layers]

    return step


def paged_step(model: Any, pools: Sequence[BlockPool]) -> Step:
    """A step over block tables, for `reorder_tables`: one pool a layer, for each beam one PagedCache a layer.

    Where a pool runs empty, all beams are let go before the MemoryError: their layers differ in length by then, and
    whoever called the search has no other hold on their blocks.
    """

    def step(tokens: np.ndarray, tables: Tables | None) -> tuple[np.ndarray, Tables]:
        if tables is None:
            tables = [[PagedCache(pool) for pool in pools] for _ in tokens]
        try:
            return _each(model, tokens, tables), tables
        except MemoryError:
            reorder_tables(tables, [])
            raise

    return step


def _each(model: Any, tokens: np.ndarray, beams: Sequence[Sequence[Any]]) -> np.ndarray:
    """Log-probabilities (n, vocab) after each row's last token. A decoder of one sequence takes the rows in turn."""
    return np.stack([log_softmax(model(ids, caches)[-1]) for ids, caches in zip(tokens, beams, strict=True)])


def _filled(caches: Sequence[Any], cache: Pairs | None, beam: int) -> Sequence[Any]:
    """One beam's caches, with its rows of `cache` in them."""
    for one, (k, v) in zip(caches, cache or [], strict=False):
        one.append(k[beam], v[beam])
    return caches


def _nothing(cache: ConcatCache) -> tuple[np.ndarray, np.ndarray]:
    """No new row: what appends this returns all that a cache holds."""
    empty = np.zeros((cache.n_kv_heads, 0, cache.head_dim))
    return empty, empty


def _expect_beams(beam_index: BeamIndex, n_beams: int | None) -> Int[np.ndarray, "n_next"]:
    given = np.asarray(beam_index)
    # An empty list has no integers to make an array of them from.
    index = _expect_integers("beam_index", given.astype(np.int64) if given.shape == (0,) else given, "n_next")
    if n_beams is not None and len(index) and not 0 <= index.min() <= index.max() < n_beams:
        beams = f"0 to {n_beams - 1}" if n_beams else "empty, as there are no beams"
        raise ValueError(f"beam_index must be {beams}, got {index.min()} to {index.max()}")
    return index


def _expect_integers(name: str, array: np.ndarray, axis: str) -> Int[np.ndarray, "n"]:
    expect(name, array, (axis,))
    if not np.issubdtype(array.dtype, np.integer):
        raise ValueError(f"{name}: expected integers, got {array.dtype}")
    return array


def _expect_log_probs(log_probs: np.ndarray, n: int, n_beams: int, n_new: int) -> None:
    vocab = expect("log_probs", log_probs, ("n", "vocab"), n=n)["vocab"]
    if np.isnan(log_probs).any():
        raise ValueError("log_probs: a nan has no place in an order, use -inf for a token that is not allowed")
    if (log_probs == np.inf).any():
        raise ValueError("log_probs: +inf is no logarithm of a probability, expected at most 0")
    if vocab**n_new < n_beams:
        raise ValueError(
            f"n_beams: expected at most {vocab**n_new}, the continuations of {n_new} tokens from {vocab}, got {n_beams}"
        )
