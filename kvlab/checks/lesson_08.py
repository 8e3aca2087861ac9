"""Checks for lesson 08: the sliding-window mask, a ring of the last rows, and a ring that keeps the first tokens."""

import tracemalloc
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kvlab.caches import RingCache, SinkCache
from kvlab.checks.model import Exercise, Malformed, Mistake, Observation, Probe, Stage, call, observe
from kvlab.masks import window_mask


def _mask(n_new: int, n_total: int, window: int) -> Probe:
    return call(f"window_mask({n_new}, {n_total}, window={window})", n_new, n_total, window, key="the mask")


def _distance(n_new: int, n_total: int, n_past: int | None = None) -> np.ndarray:
    """How far each key lies behind each query, negative ahead of it; n_past is where the first query stands."""
    first = n_total - n_new if n_past is None else n_past
    return np.arange(first, first + n_new)[:, None] - np.arange(n_total)[None, :]


def _between(least: int, most: Callable[[int], int]) -> Callable[[int, int, int], np.ndarray]:
    """A mask of the keys that lie `least` to `most(window)` behind the query."""

    def wrong(n_new: int, n_total: int, window: int) -> np.ndarray:
        distance = _distance(n_new, n_total)
        return (distance >= least) & (distance <= most(window))

    return wrong


def _blocks(n_new: int, n_total: int, window: int) -> np.ndarray:
    at = np.arange(n_total)
    return (_distance(n_new, n_total) >= 0) & (at[None, :] // window == at[n_total - n_new :, None] // window)


def _from(first_key: Callable[[int, int, int], int]) -> Callable[[int, int, int], np.ndarray]:
    """A causal mask with one lower bound for all queries."""

    def wrong(n_new: int, n_total: int, window: int) -> np.ndarray:
        return (_distance(n_new, n_total) >= 0) & (np.arange(n_total) >= first_key(n_new, n_total, window))

    return wrong


WINDOW_MASK = Exercise(
    id="window_mask",
    reference=window_mask,
    stages=[
        Stage("a window as long as the text hides nothing but the future", [_mask(3, 3, 3), _mask(4, 4, 9)]),
        Stage("a query sees itself and the window - 1 tokens before it", [_mask(4, 4, 2), _mask(6, 6, 3)]),
        # The chunk comes before the single token: it is the case that one-token tests miss.
        Stage(
            "a chunk over a cache has a lower bound for each query", [_mask(3, 7, 3), _mask(2, 8, 4), _mask(5, 9, 3)]
        ),
        Stage("one new token sees no more than the window", [_mask(1, 7, 3), _mask(1, 4, 9)]),
        Stage("a window of 1 is the token itself", [_mask(2, 5, 1)]),
        Stage("an empty chunk has no rows", [_mask(0, 4, 2), _mask(0, 0, 3)]),
        Stage("long texts", [_mask(5, 300, 128)]),
    ],
    mistakes=[
        Mistake(
            "one_key_too_many",
            "Every query sees window + 1 keys: itself and `window` tokens before it. The query's own key is one of the "
            "window.",
            "With a window of 2, how many keys should the last query see?",
            _between(0, lambda window: window),
        ),
        Mistake(
            "one_key_too_few",
            "Every query sees window - 1 keys: the bound leaves out the oldest key of the window.",
            "With a window of 2, how many keys should the last query see?",
            _between(0, lambda window: window - 2),
        ),
        Mistake(
            "not_itself",
            "A query sees the `window` tokens before it and not itself.",
            "When the very first token of a text asks, which keys are there for it to see?",
            _between(1, lambda window: window),
        ),
        Mistake(
            "no_lower_bound",
            "The mask is the causal one: the window hides nothing.",
            "With a window of 2, may the query at position 5 see key 0?",
            _between(0, lambda window: 10**9),
        ),
        Mistake(
            "no_upper_bound",
            "Only the lower bound is there: a query sees the tokens after itself.",
            "Which two bounds does a query's window have?",
            _between(-(10**9), lambda window: window - 1),
        ),
        Mistake(
            "both_sides",
            "The window reaches to both sides of the query: it sees tokens that come after it.",
            "May a token be predicted from tokens that follow it?",
            lambda n_new, n_total, window: np.abs(_distance(n_new, n_total)) < window,
        ),
        Mistake(
            "top_left",
            "Query 0 is treated as if it stood at position 0: over a cache the band hangs from the top-left corner.",
            "With 7 tokens in all of which 3 are new, at which position does the first new token stand?",
            lambda n_new, n_total, window: (
                (_distance(n_new, n_total, 0) >= 0) & (_distance(n_new, n_total, 0) < window)
            ),
        ),
        Mistake(
            "window_of_the_last_query",
            "All queries share the last one's lower bound: the earlier ones of a chunk lose keys that lie in their own "
            "window. A cache that evicts before the chunk attends does the same.",
            "Which keys lie in the window of the first query of the chunk?",
            _from(lambda n_new, n_total, window: n_total - window),
        ),
        Mistake(
            "window_of_the_first_query",
            "All queries share the first one's lower bound: the later ones of a chunk see keys that have left their "
            "window. One token at a time hides it.",
            "How many keys does the last query of the chunk see in your mask?",
            _from(lambda n_new, n_total, window: n_total - n_new - window + 1),
        ),
        Mistake(
            "no_window_for_one_token",
            "A single new token sees everything: the short cut for one token, for which a causal mask blocks nothing, "
            "has forgotten the window.",
            "Which keys should a single new token not see, when 7 tokens are there and the window is 3?",
            lambda n_new, n_total, window: (
                np.ones((1, n_total), bool) if n_new == 1 else window_mask(n_new, n_total, window)
            ),
        ),
        Mistake(
            "no_window_in_prefill",
            "The window holds over a cache only: in a first chunk every query sees everything before it.",
            "In a prompt of 6 tokens and a window of 3, how many keys does the last one see?",
            lambda n_new, n_total, window: window_mask(n_new, n_total, n_total + 1 if n_new == n_total else window),
        ),
        Mistake(
            "blocks",
            "The text is cut into blocks of `window` tokens and a query sees its own block: the first token of a block "
            "sees only itself. That is chunked attention, another thing; a sliding window moves with each query.",
            "How many keys does the query at position 3 see when the window is 3?",
            _blocks,
        ),
        Mistake(
            "the_first_keys",
            "The window lies at the beginning of the text: the oldest keys are seen, and the newest hidden.",
            "Which keys are nearest to the last query?",
            lambda n_new, n_total, window: (_distance(n_new, n_total) >= 0) & (np.arange(n_total) < window),
        ),
        Mistake(
            "inverted",
            "The mask is inverted: True stands where a key is hidden. Here True means the query may look.",
            "How many True entries should a row have at most?",
            lambda n_new, n_total, window: ~window_mask(n_new, n_total, window),
        ),
        Mistake(
            "square",
            "The mask is square, (n_new, n_new): it covers the new tokens only, where scores are (n_new, n_total).",
            "How many columns does the score matrix of 3 new queries over 7 keys have?",
            lambda n_new, n_total, window: window_mask(n_new, n_new, window),
        ),
        Mistake(
            "ones_and_zeros",
            "The band is right and its entries are numbers. A mask of this course is bool: True where the query may "
            "look.",
            "What does np.ones give when it is not told a dtype?",
            lambda n_new, n_total, window: window_mask(n_new, n_total, window).astype(float),
        ),
        Mistake(
            "empty_chunk_has_all_rows",
            "An empty chunk gets the whole square: a slice that counts n_new rows from the end takes all of them when "
            "n_new is 0.",
            "Which rows does a[-0:] take?",
            lambda n_new, n_total, window: window_mask(n_total, n_total, window)[-n_new:],
        ),
    ],
)

N_KV_HEADS, HEAD_DIM = 2, 5
Make = Callable[[Any], Any]  # builds a submission's cache with the probe's window and sinks


def _rows(first: int, n_tokens: int, n_kv_heads: int = N_KV_HEADS, head_dim: int = HEAD_DIM) -> tuple[Any, Any]:
    """Keys that say where they belong, position + head / 10 + channel / 100, and values 100 above them."""
    places = np.arange(first, first + n_tokens)[None, :, None]
    k = places + np.arange(n_kv_heads)[:, None, None] / 10 + np.arange(head_dim) / 100
    return k, k + 100


def _answer(cache: Any, k_new: np.ndarray, v_new: np.ndarray) -> tuple[Any, Any, Any]:
    answer = cache.append(k_new, v_new)
    if not isinstance(answer, (tuple, list)) or len(answer) != 3:
        got = "None (is a return missing?)" if answer is None else observe(answer)
        got = f"{len(got)} values" if isinstance(got, tuple) else got if isinstance(got, str) else type(answer).__name__
        raise Malformed(f"append: expected three values, k, v and positions, got {got}")
    return tuple(answer)


def _places(positions: Any) -> Any:
    """Positions as a tuple of ints, whether they came as an array, a list or a range."""
    seen = observe(list(positions) if isinstance(positions, range) else positions)
    if isinstance(seen, np.ndarray) and seen.ndim == 1 and (seen.dtype.kind in "iu" or seen.size == 0):
        return tuple(seen.tolist())
    if isinstance(seen, np.ndarray):
        raise Malformed(
            f"append: positions must be whole numbers, one for each row, got {seen.dtype} of shape {seen.shape}"
        )
    return seen


def _length(cache: Any) -> Any:
    try:
        return len(cache)
    except TypeError as error:
        raise Malformed(f"len(cache): {error}") from None


def _looked_at(answer: tuple[Any, Any, Any], when: str) -> Observation:
    k, v, positions = answer
    return {f"positions {when}": _places(positions), f"k {when}": observe(k), f"v {when}": observe(v)}


class _Caches:
    """The probes of one cache class: `sizes` are what its constructor takes after n_kv_heads and head_dim."""

    def __init__(self, name: str, names: Sequence[str]) -> None:
        self.name, self.names = name, names

    def call(self, sizes: Sequence[int], n_kv_heads: int = N_KV_HEADS, head_dim: int = HEAD_DIM) -> str:
        more = "".join(f", {n}={size}" for n, size in zip(self.names, sizes, strict=True))
        return f"{self.name}({n_kv_heads}, {head_dim}{more})"

    def appends(self, *chunks: int, sizes: Sequence[int], dtype: Any = np.float64) -> Probe:
        """Append chunks of the given sizes; look at everything each append returns."""

        def run(make: Any) -> Observation:
            cache, at = make(N_KV_HEADS, HEAD_DIM, *sizes), 0
            empty = _length(cache)
            seen: Observation = {}
            for n_new in chunks:
                k_new, v_new = (a.astype(dtype) for a in _rows(at, n_new))
                at += n_new
                tokens = f"{at} token{'s' if at != 1 else ''}"
                when = f"of the append that reaches {tokens}" if n_new else f"of the empty chunk after {tokens}"
                seen |= _looked_at(_answer(cache, k_new, v_new), when) | {f"len after {tokens}": _length(cache)}
            return seen | {"len of a new cache": empty}

        kind = "" if dtype is np.float64 else f" of {np.dtype(dtype)}"
        what = f"{len(chunks)} times one token" if set(chunks) == {1} and len(chunks) > 1 else _listed(chunks)
        return Probe(f"{self.call(sizes)}, append {what}{kind}", run, 1e-9 if dtype is np.float64 else 1e-4)

    def own_copy(self, sizes: Sequence[int]) -> Probe:
        def run(make: Any) -> Observation:
            cache = make(N_KV_HEADS, HEAD_DIM, *sizes)
            k_new, v_new = _rows(0, 4)
            first = _answer(cache, k_new, v_new)
            same = all(np.array_equal(a, b) for a, b in zip((k_new, v_new), _rows(0, 4), strict=True))
            k_new[:] = v_new[:] = 7.0  # the caller reuses its arrays
            second = _answer(cache, *_rows(4, 1))
            return (
                {"k_new and v_new after the append": "unchanged" if same else "changed"}
                | _looked_at(second, "of the next append")
                | _looked_at(first, "that the first append returned")
            )

        return Probe(f"{self.call(sizes)}, append 4 tokens, overwrite k_new and v_new, append 1 token", run)

    def results_kept(self, sizes: Sequence[int]) -> Probe:
        def run(make: Any) -> Observation:
            cache, at, kept = make(N_KV_HEADS, HEAD_DIM, *sizes), 0, []
            for n_new in (2, 3, 0, 1, 4, 1):
                kept.append(_answer(cache, *_rows(at, n_new)))
                at += n_new
            seen: Observation = {}
            for i, answer in enumerate(kept[:-1]):
                seen |= _looked_at(answer, f"returned by append {i + 1}, looked at after all of them")
            return seen

        return Probe(f"{self.call(sizes)}, keep what appends of 2, 3, 0, 1, 4 and 1 tokens return", run)

    def two(self, sizes: Sequence[int]) -> Probe:
        def run(make: Any) -> Observation:
            first, second = make(N_KV_HEADS, HEAD_DIM, *sizes), make(3, 4, *sizes)
            _answer(first, *_rows(0, 5))
            in_second = _answer(second, *_rows(50, 2, 3, 4))
            in_first = _answer(first, *_rows(5, 1))
            lengths = {"their lengths": (_length(first), _length(second))}
            return _looked_at(in_second, "of the second cache") | _looked_at(in_first, "of the first cache") | lengths

        both = f"{self.call(sizes)} and {self.call(sizes, 3, 4)}"
        return Probe(f"{both}, 5 tokens to the first, 2 to the second, 1 to the first", run)

    def zeros(self, sizes: Sequence[int]) -> Probe:
        def run(make: Any) -> Observation:
            cache = make(N_KV_HEADS, HEAD_DIM, *sizes)
            zeros = np.zeros((N_KV_HEADS, 3, HEAD_DIM))
            _answer(cache, zeros, zeros.copy())
            return _looked_at(_answer(cache, *_rows(3, 1)), "of the next append") | {"len": _length(cache)}

        return Probe(f"{self.call(sizes)}, append 3 tokens of zeros, then 1", run)

    def memory(self, sizes: Sequence[int]) -> Probe:
        """Bytes that the cache holds on to after a long text, seen from outside, whatever it keeps them in."""
        chunks, head_dim = (1500, 250, 1, 250, 1, 1), 40
        row_bytes = 2 * N_KV_HEADS * head_dim * 8

        def run(make: Any) -> Observation:
            already = tracemalloc.is_tracing()
            if not already:
                tracemalloc.start()
            before, at = tracemalloc.get_traced_memory()[0], 0
            try:
                cache = make(N_KV_HEADS, head_dim, *sizes)
                for n_new in chunks:
                    _answer(cache, *_rows(at, n_new, head_dim=head_dim))
                    at += n_new
                held = tracemalloc.get_traced_memory()[0] - before
            finally:
                if not already:
                    tracemalloc.stop()
            # A tenth of the text is far more than a few rows and what Python sets aside for objects of a loop.
            few = held < at * row_bytes // 10
            return {"what it still holds": "a few rows" if few else "rows of the whole text", "len": _length(cache)}

        return Probe(
            f"{self.call(sizes, head_dim=head_dim)}, append {sum(chunks):,} tokens in {len(chunks)} chunks", run
        )


def _listed(chunks: Sequence[int]) -> str:
    if len(chunks) == 1:
        return f"{chunks[0]} token{'s' if chunks[0] != 1 else ''}"
    return f"chunks of {', '.join(map(str, chunks[:-1]))} and {chunks[-1]} tokens"


class _Wrong:
    """A right cache that the mistakes below spoil in one place each. Rows are kept in time order, not in a ring."""

    window: int
    n_sinks = 0

    def __init__(self, n_kv_heads: int, head_dim: int) -> None:
        self.k = self.v = np.zeros((n_kv_heads, 0, head_dim))
        self.at = np.zeros(0, int)
        self.seen = 0

    def append(self, k_new: np.ndarray, v_new: np.ndarray) -> Any:
        if self.seen == 0:
            self.k, self.v = self.k.astype(k_new.dtype), self.v.astype(v_new.dtype)
        new = np.arange(self.seen, self.seen + k_new.shape[1])
        before = self.before(self.at)
        k = np.concatenate([self.k[:, before], k_new], axis=1)
        v = np.concatenate([self.v[:, before], v_new], axis=1)
        positions = np.concatenate([self.at[before], new])
        self.seen += len(new)
        at = np.concatenate([self.at, new])
        stay = self.stays(at)
        self.k = np.concatenate([self.k, k_new], axis=1)[:, stay]
        self.v = np.concatenate([self.v, v_new], axis=1)[:, stay]
        self.at = at[stay]
        return self.answer(k, v, positions)

    def before(self, at: np.ndarray) -> np.ndarray:
        """Which of the rows held go in front of the chunk."""
        return (at > self.seen - self.window) | (at < self.n_sinks)

    def stays(self, at: np.ndarray) -> np.ndarray:
        """Which rows are held after the append; self.seen counts the chunk already."""
        return (at >= self.seen - self.window) | (at < self.n_sinks)

    def answer(self, k: np.ndarray, v: np.ndarray, positions: np.ndarray) -> Any:
        return k, v, positions

    def __len__(self) -> int:
        return self.seen


class _WrongRing(_Wrong):
    def __init__(self, n_kv_heads: int, head_dim: int, window: int) -> None:
        super().__init__(n_kv_heads, head_dim)
        self.window = window


class _WrongSinks(_Wrong):
    def __init__(self, n_kv_heads: int, head_dim: int, n_sinks: int, window: int) -> None:
        super().__init__(n_kv_heads, head_dim)
        self.window, self.n_sinks = window, n_sinks


# What can go wrong in either cache: each takes the right one of the two as its base.


class _EvictsFirst:
    """Takes the chunk in, drops all but what stays, and hands that out."""

    def answer(self: Any, k: np.ndarray, v: np.ndarray, positions: np.ndarray) -> Any:
        return self.k.copy(), self.v.copy(), self.at.copy()


class _OneTooMany:
    def before(self: Any, at: np.ndarray) -> np.ndarray:
        return (at >= self.seen - self.window) | (at < self.n_sinks)


class _OneTooFew:
    def before(self: Any, at: np.ndarray) -> np.ndarray:
        return (at > self.seen - self.window + 1) | (at < self.n_sinks)


class _Everything:
    """Neither evicts nor leaves anything out."""

    def before(self: Any, at: np.ndarray) -> np.ndarray:
        return at >= 0

    def stays(self: Any, at: np.ndarray) -> np.ndarray:
        return at >= 0


class _KeepsEverything:
    """Hands out the right rows and never lets go of the others."""

    def stays(self: Any, at: np.ndarray) -> np.ndarray:
        return at >= 0


class _OnlyBefore:
    def answer(self: Any, k: np.ndarray, v: np.ndarray, positions: np.ndarray) -> Any:
        past = positions < self.asked
        return k[:, past], v[:, past], positions[past]

    def append(self: Any, k_new: np.ndarray, v_new: np.ndarray) -> Any:
        self.asked = self.seen
        return super().append(k_new, v_new)  # type: ignore[misc]


class _Renumbered:
    def answer(self: Any, k: np.ndarray, v: np.ndarray, positions: np.ndarray) -> Any:
        return k, v, np.arange(len(positions))


class _NewestFirst:
    def answer(self: Any, k: np.ndarray, v: np.ndarray, positions: np.ndarray) -> Any:
        return k[:, ::-1], v[:, ::-1], positions[::-1]


class _Exchanged:
    def answer(self: Any, k: np.ndarray, v: np.ndarray, positions: np.ndarray) -> Any:
        return v, k, positions


class _CountsRows:
    def __len__(self: Any) -> int:
        return len(self.at)


class _EmptyRaises:
    def append(self: Any, k_new: np.ndarray, v_new: np.ndarray) -> Any:
        if k_new.shape[1] == 0:
            raise ValueError("nothing to append")
        return super().append(k_new, v_new)  # type: ignore[misc]


class _EmptyReturnsNothing:
    def append(self: Any, k_new: np.ndarray, v_new: np.ndarray) -> Any:
        if k_new.shape[1] == 0:
            return k_new, v_new, np.zeros(0, int)
        return super().append(k_new, v_new)  # type: ignore[misc]


class _LongChunkRaises:
    def append(self: Any, k_new: np.ndarray, v_new: np.ndarray) -> Any:
        if k_new.shape[1] > self.window:
            raise ValueError(f"{k_new.shape[1]} rows do not fit into {self.window} slots")
        return super().append(k_new, v_new)  # type: ignore[misc]


class _ReturnsGiven:
    """Hands the caller's own arrays back while nothing stands before them."""

    def append(self: Any, k_new: np.ndarray, v_new: np.ndarray) -> Any:
        first = self.seen == 0
        k, v, positions = super().append(k_new, v_new)  # type: ignore[misc]
        return (k_new, v_new, positions) if first else (k, v, positions)


class _InSlots:
    """Hands out views of one buffer that the next append overwrites."""

    buffers: Any = None

    def answer(self: Any, k: np.ndarray, v: np.ndarray, positions: np.ndarray) -> Any:
        if self.buffers is None:
            self.buffers = [np.zeros((len(k), 4096, k.shape[2]), k.dtype) for _ in range(2)]
        for buffer, rows in zip(self.buffers, (k, v), strict=True):
            buffer[:, : rows.shape[1]] = rows
        k, v = (buffer[:, : len(positions)] for buffer in self.buffers)
        return k, v, positions

    def stays(self: Any, at: np.ndarray) -> np.ndarray:
        if self.seen > 100 and self.buffers is not None:  # the buffer of a real ring is as small as its window
            self.buffers = None
        return super().stays(at)  # type: ignore[misc]


def _spoiled(*faults: type, base: type) -> type:
    return type(f"{base.__name__}{''.join(f.__name__ for f in faults)}", (*faults, base), {})


class _KeepsReference(_WrongRing):
    """Stores the caller's arrays themselves while they fit into the window."""

    def append(self, k_new: np.ndarray, v_new: np.ndarray) -> Any:
        first = self.seen == 0
        answer = super().append(k_new, v_new)
        if first:
            self.k, self.v = (rows[:, -self.window :] if rows.shape[1] else rows for rows in (k_new, v_new))
        return answer


class _SlotOrder(_WrongRing):
    """Rows lie in slot position % window and come back slot by slot, then the chunk."""

    labels_in_time_order = False

    def answer(self, k: np.ndarray, v: np.ndarray, positions: np.ndarray) -> Any:
        past = positions < self.seen - self.n_new
        order = np.concatenate([np.argsort(positions[past] % self.window, kind="stable"), np.flatnonzero(~past)])
        return k[:, order], v[:, order], positions if self.labels_in_time_order else positions[order]

    def append(self, k_new: np.ndarray, v_new: np.ndarray) -> Any:
        self.n_new = k_new.shape[1]
        return super().append(k_new, v_new)


class _SlotOrderMislabelled(_SlotOrder):
    labels_in_time_order = True


class _Unwritten(_WrongRing):
    """Hands out window - 1 rows from the start, zeros where nobody has written."""

    def answer(self, k: np.ndarray, v: np.ndarray, positions: np.ndarray) -> Any:
        n_missing = max(self.window - 1 - int((positions < self.asked).sum()), 0)
        nothing = np.zeros((len(k), n_missing, k.shape[2]), k.dtype)
        k, v = np.concatenate([nothing, k], axis=1), np.concatenate([nothing, v], axis=1)
        return k, v, np.concatenate([np.zeros(n_missing, int), positions])

    def append(self, k_new: np.ndarray, v_new: np.ndarray) -> Any:
        self.asked = self.seen
        return super().append(k_new, v_new)


class _FullRingRefuses(_WrongRing):
    """Once the window is full, what comes is handed out and not stored."""

    def stays(self, at: np.ndarray) -> np.ndarray:
        return at < self.window


class _StartsAnew(_WrongRing):
    """A full window is thrown away as a whole."""

    def stays(self, at: np.ndarray) -> np.ndarray:
        return at >= self.seen - self.seen % self.window


class _StartOfLongChunk(_WrongRing):
    """Of a chunk longer than the window, stores the first `window` rows."""

    def append(self, k_new: np.ndarray, v_new: np.ndarray) -> Any:
        self.limit = self.seen + self.window if k_new.shape[1] > self.window else None
        return super().append(k_new, v_new)

    def stays(self, at: np.ndarray) -> np.ndarray:
        return super().stays(at) if self.limit is None else (at < self.limit) & (at >= self.limit - self.window)


def _shared() -> type:
    """State on the class: all caches are one."""

    class Shared(_WrongRing):
        held: Any = None

        def append(self, k_new: np.ndarray, v_new: np.ndarray) -> Any:
            if Shared.held is not None and Shared.held[0].shape[::2] == k_new.shape[::2]:
                self.k, self.v, self.at, self.seen = Shared.held
            answer = super().append(k_new, v_new)
            Shared.held = self.k, self.v, self.at, self.seen
            return answer

        def __len__(self) -> int:
            return 0 if Shared.held is None else Shared.held[3]

    return Shared


_RING = _Caches("RingCache", ["window"])

RING_CACHE = Exercise(
    id="RingCache",
    is_class=True,
    reference=RingCache,
    stages=[
        Stage(
            "until the window is full every row comes back",
            [_RING.appends(1, sizes=[3]), _RING.appends(2, 1, sizes=[4])],
        ),
        Stage("one token at a time, each sees window keys and no more", [_RING.appends(*[1] * 6, sizes=[3])]),
        Stage(
            "a chunk gets the rows that its first query needs",
            [_RING.appends(4, 2, sizes=[3]), _RING.appends(2, 3, 2, sizes=[4])],
        ),
        Stage(
            "uneven chunks, some longer than the window",
            [_RING.appends(5, 1, sizes=[3]), _RING.appends(3, 1, 9, 2, 1, 1, sizes=[4])],
        ),
        Stage("an empty chunk changes nothing", [_RING.appends(0, 2, sizes=[3]), _RING.appends(5, 0, 1, sizes=[3])]),
        Stage("a window of 1 keeps nothing for the next token", [_RING.appends(1, 2, 1, sizes=[1])]),
        Stage("a token whose key is all zeros is a token", [_RING.zeros([3])]),
        Stage("two caches know nothing of each other", [_RING.two([3])]),
        Stage("it keeps its own copy", [_RING.own_copy([5]), _RING.own_copy([3])]),
        Stage("what it returned earlier does not change", [_RING.results_kept([3])]),
        Stage("float32", [_RING.appends(4, 1, 2, sizes=[3], dtype=np.float32)]),
        Stage("a long text leaves no more than the window behind", [_RING.memory([4])]),
    ],
    mistakes=[
        Mistake(
            "evicts_before_attending",
            "The chunk is taken in and old rows are dropped before anything is handed out: the chunk's first queries "
            "lose keys that lie in their window. One token at a time hides it.",
            "Which keys does the first query of the chunk see, and which does the last?",
            _spoiled(_EvictsFirst, base=_WrongRing),
        ),
        Mistake(
            "one_row_too_many",
            "A full window of rows comes back before the chunk, and the new token makes it window + 1: the query's "
            "own key is one of the window.",
            "With a window of 3, how many keys lie before the query's own?",
            _spoiled(_OneTooMany, base=_WrongRing),
        ),
        Mistake(
            "one_row_too_few",
            "The oldest row that the first new query may see is missing.",
            "With a window of 3, how many keys lie before the query's own?",
            _spoiled(_OneTooFew, base=_WrongRing),
        ),
        Mistake(
            "slot_order",
            "The rows come back in the order of their slots. Once the ring has gone round, that is not the order of "
            "time, and `append` promises the oldest first.",
            "With a window of 3, which position lies in slot 0 after 4 tokens?",
            _SlotOrder,
        ),
        Mistake(
            "slot_order_mislabelled",
            "The rows come back in the order of their slots with positions counted up as if that were the order of "
            "time: a mask or a bias by position then falls on the wrong rows.",
            "With a window of 3, which position lies in slot 0 after 4 tokens?",
            _SlotOrderMislabelled,
        ),
        Mistake(
            "never_evicts",
            "Nothing is ever evicted: every row of the text comes back, as from a cache without a window.",
            "After 6 tokens and a window of 3, which rows can no later query see?",
            _spoiled(_Everything, base=_WrongRing),
        ),
        Mistake(
            "keeps_everything",
            "The right rows come back and all others are kept besides: the memory grows with the text.",
            "How many rows does your cache hold after 2,000 tokens?",
            _spoiled(_KeepsEverything, base=_WrongRing),
        ),
        Mistake(
            "chunk_missing",
            "Only the rows before the chunk come back: a new token could not see itself.",
            "Should a new token's own key be among the keys that its query looks at?",
            _spoiled(_OnlyBefore, base=_WrongRing),
        ),
        Mistake(
            "positions_of_rows",
            "The positions count the rows returned, 0, 1, 2: after an eviction the oldest row is not the text's first "
            "token any more.",
            "After 5 tokens and a window of 3, at which position does the next token stand?",
            _spoiled(_Renumbered, base=_WrongRing),
        ),
        Mistake(
            "counts_rows",
            "len counts the rows held. It is the tokens seen: the position of the next token depends on it.",
            "After 6 tokens and a window of 3, at which position does the next token stand?",
            _spoiled(_CountsRows, base=_WrongRing),
        ),
        Mistake(
            "unwritten_slots",
            "Slots that nobody has written yet come back as rows of zeros. A zero key scores 0, which is not hidden.",
            "After the first token, how many rows are there for it to see?",
            _Unwritten,
        ),
        Mistake(
            "full_ring_refuses",
            "When the window is full the new rows are no longer stored: the oldest tokens stay and the newest go.",
            "Which rows will the next token need, the first of the text or the last?",
            _FullRingRefuses,
        ),
        Mistake(
            "starts_anew",
            "A full window is thrown away as a whole: the next token has nobody to look back at.",
            "How many rows leave when one token comes into a full window?",
            _StartsAnew,
        ),
        Mistake(
            "start_of_a_long_chunk",
            "Of a chunk longer than the window its first rows are stored, where later tokens need its last ones.",
            "After a prompt of 5 tokens and a window of 3, which rows does the next token need?",
            _StartOfLongChunk,
        ),
        Mistake(
            "long_chunk_raises",
            "A chunk longer than the window raises: a prompt is often longer, and only what is stored is limited.",
            "How many rows of a prompt of 5 tokens must be kept when the window is 3?",
            _spoiled(_LongChunkRaises, base=_WrongRing),
        ),
        Mistake(
            "newest_first",
            "The newest row comes first. Rows come back oldest first.",
            "In which order do the columns of the mask stand?",
            _spoiled(_NewestFirst, base=_WrongRing),
        ),
        Mistake(
            "exchanged",
            "Keys and values come back exchanged.",
            "In which order does append promise to return them?",
            _spoiled(_Exchanged, base=_WrongRing),
        ),
        Mistake(
            "empty_chunk_raises",
            "A chunk of no tokens raises; it should return the rows that the next token may need.",
            "Which rows would a token see that comes after the empty chunk?",
            _spoiled(_EmptyRaises, base=_WrongRing),
        ),
        Mistake(
            "empty_chunk_returns_nothing",
            "An empty chunk comes back as it is, where the rows before it belong too.",
            "Which rows would a token see that comes after the empty chunk?",
            _spoiled(_EmptyReturnsNothing, base=_WrongRing),
        ),
        Mistake(
            "one_store_for_all",
            "The rows are kept on the class: all caches share them, and a second text begins in the middle of the "
            "first.",
            "Where do the rows of two caches lie in your code?",
            _shared,
            fresh=True,
        ),
        Mistake(
            "keeps_the_callers_arrays",
            "The caller's arrays are stored, not copies of them: when the caller writes to them the cache changes.",
            "What does your cache hold after the caller has overwritten k_new?",
            _KeepsReference,
        ),
        Mistake(
            "returns_the_callers_arrays",
            "While nothing is stored the caller's own arrays come back: what was returned changes when the caller "
            "writes to them.",
            "Whose memory does the first append's answer lie in?",
            _spoiled(_ReturnsGiven, base=_WrongRing),
        ),
        Mistake(
            "returns_its_own_slots",
            "What comes back is a view of the cache's own slots, which the next append overwrites.",
            "What happens to the arrays of the last answer when a slot is used again?",
            _spoiled(_InSlots, base=_WrongRing),
        ),
    ],
)


class _NoSinks(_WrongSinks):
    """A plain ring."""

    def __init__(self, n_kv_heads: int, head_dim: int, n_sinks: int, window: int) -> None:
        super().__init__(n_kv_heads, head_dim, 0, window)


class _SinksInsideTheWindow(_WrongSinks):
    """The sinks take their room from the window."""

    def __init__(self, n_kv_heads: int, head_dim: int, n_sinks: int, window: int) -> None:
        super().__init__(n_kv_heads, head_dim, n_sinks, window - n_sinks)


class _SinksTwice(_WrongSinks):
    """Puts the sinks in front of the window's rows, also while they are among them."""

    def append(self, k_new: np.ndarray, v_new: np.ndarray) -> Any:
        past = self.seen
        k, v, positions = super().append(k_new, v_new)
        sinks, near = positions < min(self.n_sinks, past), positions > past - self.window
        order = np.concatenate([np.flatnonzero(sinks), np.flatnonzero(near)])
        return k[:, order], v[:, order], positions[order]


class _SinksTooLate(_WrongSinks):
    """Brings the sinks back only when all of them have left the window."""

    def before(self, at: np.ndarray) -> np.ndarray:
        near = at > self.seen - self.window
        gone = self.seen - self.window + 1 >= self.n_sinks
        return near | ((at < self.n_sinks) & gone)


class _SinksOfEachChunk(_WrongSinks):
    """Takes the first rows of the newest chunk for the sinks."""

    start = 0

    def append(self, k_new: np.ndarray, v_new: np.ndarray) -> Any:
        self.newest = self.seen
        answer = super().append(k_new, v_new)
        self.start = self.newest
        return answer

    def before(self, at: np.ndarray) -> np.ndarray:
        return (at > self.seen - self.window) | self._sinks(at, self.start)

    def stays(self, at: np.ndarray) -> np.ndarray:
        return (at >= self.seen - self.window) | self._sinks(at, self.newest)

    def _sinks(self, at: np.ndarray, start: int) -> np.ndarray:
        return (at >= start) & (at < start + self.n_sinks)


class _SinksOfFirstChunk(_WrongSinks):
    """Only the first chunk can give sinks, however short it is."""

    n_first = 0

    def append(self, k_new: np.ndarray, v_new: np.ndarray) -> Any:
        if self.seen == 0 and k_new.shape[1]:
            self.n_sinks = min(self.n_sinks, k_new.shape[1])
        return super().append(k_new, v_new)


class _SinksLast(_WrongSinks):
    """Sinks that have left the window come after the other rows."""

    def answer(self, k: np.ndarray, v: np.ndarray, positions: np.ndarray) -> Any:
        first = self.asked - self.window + 1
        away = (positions < self.n_sinks) & (positions < first)
        order = np.concatenate([np.flatnonzero(~away), np.flatnonzero(away)])
        return k[:, order], v[:, order], positions[order]

    def append(self, k_new: np.ndarray, v_new: np.ndarray) -> Any:
        self.asked = self.seen
        return super().append(k_new, v_new)


class _SinksNextToWindow(_WrongSinks):
    """Gives the sinks the positions just before the window's first row."""

    def answer(self, k: np.ndarray, v: np.ndarray, positions: np.ndarray) -> Any:
        return k, v, np.arange(self.seen - len(positions), self.seen)


class _SinksAreTheCallers(_WrongSinks):
    """Stores the caller's arrays themselves while every row of them stays."""

    def append(self, k_new: np.ndarray, v_new: np.ndarray) -> Any:
        first = self.seen == 0
        answer = super().append(k_new, v_new)
        if first and self.k.shape == k_new.shape:
            self.k, self.v = k_new, v_new
        return answer


class _NoneIsAll(_WrongSinks):
    """0 sinks keep everything: rows counted from the end, of which -0 are all."""

    def before(self, at: np.ndarray) -> np.ndarray:
        return super().before(at) if self.n_sinks else at >= 0

    def stays(self, at: np.ndarray) -> np.ndarray:
        return super().stays(at) if self.n_sinks else at >= 0


_SINK = _Caches("SinkCache", ["n_sinks", "window"])

SINK_CACHE = Exercise(
    id="SinkCache",
    is_class=True,
    reference=SinkCache,
    stages=[
        Stage(
            "while the sinks lie in the window every row comes back once",
            [_SINK.appends(1, sizes=[2, 3]), _SINK.appends(2, 1, sizes=[2, 4])],
        ),
        Stage("one token at a time, the sinks stay in front", [_SINK.appends(*[1] * 8, sizes=[2, 3])]),
        Stage(
            "a chunk gets the sinks and the rows that its first query needs",
            [_SINK.appends(6, 2, sizes=[1, 3]), _SINK.appends(3, 3, 2, sizes=[2, 4])],
        ),
        Stage(
            "uneven chunks, some longer than the window",
            [_SINK.appends(8, 1, sizes=[2, 3]), _SINK.appends(1, 3, 9, 2, 1, 1, sizes=[3, 4])],
        ),
        Stage(
            "as many sinks as window, and none",
            [_SINK.appends(5, 2, 1, sizes=[3, 3]), _SINK.appends(5, 2, sizes=[0, 3])],
        ),
        Stage(
            "an empty chunk changes nothing",
            [
                _SINK.appends(0, 2, sizes=[1, 3]),
                _SINK.appends(0, 7, 1, sizes=[2, 3]),
                _SINK.appends(7, 0, 1, sizes=[2, 3]),
            ],
        ),
        Stage("a token whose key is all zeros is a token", [_SINK.zeros([1, 2])]),
        Stage("two caches know nothing of each other", [_SINK.two([1, 3])]),
        Stage("it keeps its own copy", [_SINK.own_copy([2, 3])]),
        Stage("what it returned earlier does not change", [_SINK.results_kept([2, 3])]),
        Stage("float32", [_SINK.appends(4, 1, 2, sizes=[1, 3], dtype=np.float32)]),
        Stage("a long text leaves the sinks and the window behind", [_SINK.memory([2, 4])]),
    ],
    mistakes=[
        Mistake(
            "no_sinks",
            "The first tokens leave like all others: this is a plain window.",
            "After 8 tokens, which rows should still be there besides the last ones?",
            _NoSinks,
        ),
        Mistake(
            "sinks_inside_the_window",
            "The sinks take their room from the window. They are kept besides it: a query sees n_sinks + window keys.",
            "With 2 sinks and a window of 3, how many keys does the query at position 7 see?",
            _SinksInsideTheWindow,
        ),
        Mistake(
            "sinks_twice",
            "While the sinks still lie in the window they come back twice, and take twice their weight in the softmax.",
            "After 3 tokens, 2 sinks and a window of 4, how many rows are there?",
            _SinksTwice,
        ),
        Mistake(
            "sinks_too_late",
            "The sinks are put in front only when all of them have left the window: those that left first are missing "
            "until then.",
            "With 2 sinks and a window of 3, which sinks lie in the window of the query at position 3?",
            _SinksTooLate,
        ),
        Mistake(
            "sinks_of_each_chunk",
            "The first tokens of each chunk are taken for the sinks. Sinks are the first tokens of the text.",
            "Which tokens are the sinks after a prompt of 6 tokens and 2 more?",
            _SinksOfEachChunk,
        ),
        Mistake(
            "sinks_of_the_first_chunk_only",
            "Only the first chunk is searched for sinks: when it is shorter than n_sinks, the rest never become sinks.",
            "If a text begins with chunks of 1 and 3 tokens, which tokens are its first 3?",
            _SinksOfFirstChunk,
        ),
        Mistake(
            "sinks_last",
            "The sinks come after the other rows. They are the oldest rows, and rows come back oldest first.",
            "At which positions do the sinks stand?",
            _SinksLast,
        ),
        Mistake(
            "sinks_next_to_the_window",
            "The sinks get positions just before the window, while all else keeps its own. Positions are absolute, "
            "and a sink stands where it always stood.",
            "At which position was the first token of the text when it came in?",
            _SinksNextToWindow,
        ),
        Mistake(
            "positions_of_rows",
            "The positions count the rows returned, 0, 1, 2. Some models do number the rows held so, and then rotate "
            "keys on each read; what is asked here are the positions in the text.",
            "After 8 tokens, at which position does the newest one stand?",
            _spoiled(_Renumbered, base=_WrongSinks),
        ),
        Mistake(
            "evicts_before_attending",
            "The chunk is taken in and old rows are dropped before anything is handed out: the chunk's first queries "
            "lose keys that lie in their window. One token at a time hides it.",
            "Which keys does the first query of the chunk see, and which does the last?",
            _spoiled(_EvictsFirst, base=_WrongSinks),
        ),
        Mistake(
            "one_row_too_many",
            "A full window of rows comes back before the chunk: the new token makes it window + 1, besides the sinks.",
            "With a window of 3, how many keys besides the sinks lie before the query's own?",
            _spoiled(_OneTooMany, base=_WrongSinks),
        ),
        Mistake(
            "one_row_too_few",
            "The oldest row that the first new query may see besides the sinks is missing.",
            "With a window of 3, how many keys besides the sinks lie before the query's own?",
            _spoiled(_OneTooFew, base=_WrongSinks),
        ),
        Mistake(
            "never_evicts",
            "Nothing is ever evicted: every row of the text comes back, as from a cache without a window.",
            "After 8 tokens, 2 sinks and a window of 3, which rows can no later query see?",
            _spoiled(_Everything, base=_WrongSinks),
        ),
        Mistake(
            "none_is_all",
            "With no sinks everything is kept: a slice that counts 0 rows from the end takes all of them.",
            "Which rows does a[-0:] take?",
            _NoneIsAll,
        ),
        Mistake(
            "keeps_everything",
            "The right rows come back and all others are kept besides: the memory grows with the text.",
            "How many rows does your cache hold after 2,000 tokens?",
            _spoiled(_KeepsEverything, base=_WrongSinks),
        ),
        Mistake(
            "counts_rows",
            "len counts the rows held. It is the tokens seen: the position of the next token depends on it.",
            "After 8 tokens, at which position does the next token stand?",
            _spoiled(_CountsRows, base=_WrongSinks),
        ),
        Mistake(
            "long_chunk_raises",
            "A chunk longer than the window raises: a prompt is often longer, and only what is stored is limited.",
            "How many rows of a prompt of 8 tokens must be kept with 2 sinks and a window of 3?",
            _spoiled(_LongChunkRaises, base=_WrongSinks),
        ),
        Mistake(
            "empty_chunk_returns_nothing",
            "An empty chunk comes back as it is, where the rows before it belong too.",
            "Which rows would a token see that comes after the empty chunk?",
            _spoiled(_EmptyReturnsNothing, base=_WrongSinks),
        ),
        Mistake(
            "keeps_the_callers_arrays",
            "The caller's arrays are stored, not copies of them: when the caller writes to them the sinks change.",
            "What does your cache hold after the caller has overwritten k_new?",
            _SinksAreTheCallers,
        ),
        Mistake(
            "returns_its_own_slots",
            "What comes back is a view of the cache's own slots, which the next append overwrites.",
            "What happens to the arrays of the last answer when a slot is used again?",
            _spoiled(_InSlots, base=_WrongSinks),
        ),
    ],
)

EXERCISES = [WINDOW_MASK, RING_CACHE, SINK_CACHE]
