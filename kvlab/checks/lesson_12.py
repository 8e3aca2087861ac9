"""Checks for lesson 12: beams that change places, and the search that makes them do it."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kvlab import beams
from kvlab.checks.model import Exercise, Malformed, Mistake, Observation, Probe, Stage, observe, pair

Cache = Any  # of a submission: a list of (k, v) if it is right


def _rows(n_beams: int, n_kv_heads: int, n_total: int, head_dim: int, seed: int, dtype: Any = np.float64) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n_beams, n_kv_heads, n_total, head_dim)).astype(dtype)


def _cache(shape: Sequence[int], n_layers: int, dtype: Any = np.float64) -> list[tuple[np.ndarray, np.ndarray]]:
    if tuple(shape[1:]) == (1, 1, 1):  # small enough to be read: keys 10, 20, ... and values 1, 2, ...
        counts = np.arange(1, shape[0] + 1, dtype=dtype).reshape(-1, 1, 1, 1)
        return [(100 * layer + 10 * counts, 100 * layer + counts) for layer in range(n_layers)]
    n_beams, n_kv_heads, n_total, head_dim = shape
    return [
        (
            _rows(n_beams, n_kv_heads, n_total, head_dim, 2 * layer, dtype),
            _rows(n_beams, n_kv_heads, n_total, head_dim, 2 * layer + 1, dtype),
        )
        for layer in range(n_layers)
    ]


def _layers(value: Any, n_layers: int, what: str) -> list[tuple[Any, Any]]:
    """The (k, v) of each layer, or in words what came instead."""
    if not isinstance(value, (list, tuple)) or len(value) != n_layers:
        got = "None (is a return missing?)" if value is None else type(value).__name__
        got = f"{got} of {len(value)}" if isinstance(value, (list, tuple)) else got
        raise Malformed(f"{what}: expected a list with one (k, v) for each of {n_layers} layers, got {got}")
    return [pair(layer, f"{what}, layer {i}") for i, layer in enumerate(value)]


def _reordering(shape: Sequence[int], index: Sequence[int], n_layers: int = 1, dtype: Any = np.float64) -> Probe:
    def run(submission: Callable[..., Any]) -> Observation:
        answer = submission(_cache(shape, n_layers, dtype), np.array(index, dtype=np.int64))
        seen: Observation = {}
        for i, (k, v) in enumerate(_layers(answer, n_layers, "reorder_cache")):
            for name, x in (("keys", k), ("values", v)):
                row = observe(x)
                one_number = isinstance(row, np.ndarray) and row.shape[1:] == (1, 1, 1)
                seen[f"the {name} of layer {i}, beam by beam"] = row.ravel() if one_number else row
        return seen

    rows = "keys 10, 20, ... and values 1, 2, ... of" if tuple(shape[1:]) == (1, 1, 1) else "k and v of"
    layers = "1 layer" if n_layers == 1 else f"{n_layers} layers"
    kind = "" if dtype is np.float64 else f" {np.dtype(dtype)}"
    describe = f"reorder_cache(cache, np.array({list(index)})), {layers}, {rows} shape {tuple(shape)}{kind}"
    return Probe(describe, run, 1e-9 if dtype is np.float64 else 1e-4)


def _input_stays(index: Sequence[int], n_beams: int = 3) -> Probe:
    """Look at what was handed over, then write into the first new beam and look again."""
    shape = (n_beams, 2, 4, 5)

    def run(submission: Callable[..., Any]) -> Observation:
        given, beam_index = _cache(shape, 2), np.array(index, dtype=np.int64)
        handed = list(given)
        answer = _layers(submission(given, beam_index), 2, "reorder_cache")
        seen: Observation = {
            "the cache handed in, afterwards": "unchanged" if _unchanged(given, handed, shape) else "changed",
            "beam_index afterwards": observe(beam_index),
        }
        others = [[np.array(x[1:]) for x in layer if isinstance(x, np.ndarray)] for layer in answer]
        for layer in answer:
            for x in layer:
                if not isinstance(x, np.ndarray) or not x.flags.writeable:
                    raise Malformed("reorder_cache: k and v must be arrays that the next step can write to")
                x[:1] = 7.0
        kept = all(
            np.array_equal(x[1:], other)
            for layer, old in zip(answer, others, strict=True)
            for x, other in zip(layer, old, strict=True)
        )
        return seen | {
            "the cache handed in, after a write to new beam 0": (
                "unchanged" if _unchanged(given, handed, shape) else "changed"
            ),
            "the other new beams, after a write to new beam 0": "unchanged" if kept else "changed",
        }

    return Probe(f"reorder_cache(cache, np.array({list(index)})), then write to beam 0 of the new cache", run)


def _unchanged(given: list[Any], handed: list[Any], shape: Sequence[int]) -> bool:
    if len(given) != len(handed) or any(a is not b for a, b in zip(given, handed, strict=True)):
        return False
    return all(
        np.array_equal(x, y)
        for pair_now, pair_then in zip(given, _cache(shape, len(given)), strict=True)
        for x, y in zip(pair_now, pair_then, strict=True)
    )


def _reorder(cache: Cache, beam_index: np.ndarray) -> Cache:
    return [(k[beam_index], v[beam_index]) for k, v in cache]


def _scattered(x: np.ndarray, beam_index: np.ndarray) -> np.ndarray:
    """Row i of the old goes to place beam_index[i]: the reverse of what is asked."""
    out = x[beam_index]
    for i, place in enumerate(beam_index):
        if i < len(x):
            out[min(place, len(out) - 1)] = x[i]
    return out


def _in_place(cache: Cache, beam_index: np.ndarray) -> Cache:
    for layer, (k, v) in enumerate(cache):
        cache[layer] = k[beam_index], v[beam_index]
    return cache


def _into_the_old_arrays(cache: Cache, beam_index: np.ndarray) -> Cache:
    if any(len(k) != len(beam_index) for k, _ in cache):
        return _reorder(cache, beam_index)
    for k, v in cache:
        k[:], v[:] = k[beam_index], v[beam_index]
    return list(cache)


def _row_after_row(cache: Cache, beam_index: np.ndarray) -> Cache:
    """Rows are moved one after another within one array: an early move overwrites what a later one needs."""
    moved = []
    for layer in cache:
        arrays = []
        for x in layer:
            x = np.concatenate([x, *[x[:1]] * max(0, len(beam_index) - len(x))])
            for i, beam in enumerate(beam_index):
                x[i] = x[beam]
            arrays.append(x[: len(beam_index)])
        moved.append(tuple(arrays))
    return moved


def _same_when_nothing_moves(cache: Cache, beam_index: np.ndarray) -> Cache:
    if np.array_equal(beam_index, np.arange(len(cache[0][0]))):
        return list(cache)
    return _reorder(cache, beam_index)


def _one_view_for_all(cache: Cache, beam_index: np.ndarray) -> Cache:
    """Where all beams go on from one, they are given one row of memory together."""
    if len(set(beam_index.tolist())) > 1:
        return _reorder(cache, beam_index)

    def shared(x: np.ndarray) -> np.ndarray:
        row = x[beam_index[0]].copy()
        return np.lib.stride_tricks.as_strided(row, (len(beam_index), *row.shape), (0, *row.strides))

    return [(shared(k), shared(v)) for k, v in cache]


REORDER_CACHE = Exercise(
    id="reorder_cache",
    reference=beams.reorder_cache,
    stages=[
        Stage("two beams change places", [_reordering((2, 1, 1, 1), [1, 0])]),
        Stage("new beam i has the rows of old beam beam_index[i]", [_reordering((3, 1, 1, 1), [2, 0, 1])]),
        Stage("a beam may go on twice, and another end", [_reordering((3, 1, 1, 1), [1, 1, 0])]),
        Stage(
            "every layer, every head, every token",
            [_reordering((2, 1, 1, 1), [1, 0], n_layers=2), _reordering((3, 2, 5, 4), [2, 2, 1], n_layers=3)],
        ),
        Stage(
            "the number of beams may change",
            [_reordering((1, 2, 5, 3), [0, 0, 0, 0]), _reordering((4, 2, 3, 5), [3, 1], n_layers=2)],
        ),
        Stage("the old cache stays, and every new beam is a copy", [_input_stays([1, 2, 0]), _input_stays([0, 1, 2])]),
        Stage("no beam shares memory with another", [_input_stays([2, 2, 2]), _input_stays([0, 0, 0], n_beams=1)]),
        Stage(
            "float32, and a cache without tokens",
            [_reordering((3, 2, 4, 5), [2, 0, 0], dtype=np.float32), _reordering((3, 2, 0, 4), [1, 1, 2])],
        ),
    ],
    mistakes=[
        Mistake(
            "values_from_keys",
            "The new values are made from the keys. Shapes agree, nothing crashes, and what attention reads out are "
            "keys.",
            "Which of the two arrays does your line for the values index?",
            lambda cache, beam_index: [(k[beam_index], k[beam_index]) for k, v in cache],
        ),
        Mistake(
            "values_stay",
            "Only the keys are reordered: each beam finds its own tokens and reads out those of another.",
            "Beam 0 now goes on from beam 2. Whose values does it read?",
            lambda cache, beam_index: [(k[beam_index], v) for k, v in cache],
        ),
        Mistake(
            "keys_stay",
            "Only the values are reordered: each beam scores the tokens of another and reads out its own.",
            "Beam 0 now goes on from beam 2. Whose keys does its query meet?",
            lambda cache, beam_index: [(k, v[beam_index]) for k, v in cache],
        ),
        Mistake(
            "only_the_first_layer",
            "Only layer 0 is reordered. Every layer has keys and values of its own, for the same beams.",
            "How many layers does the cache have, and how many does your code change?",
            lambda cache, beam_index: [(cache[0][0][beam_index], cache[0][1][beam_index]), *cache[1:]],
        ),
        Mistake(
            "nothing_moves",
            "The rows stay where they were: beam i reads on in the text of whatever beam stood at place i before.",
            "When both new beams go on from old beam 1, whose rows does new beam 0 have to begin with?",
            lambda cache, beam_index: [(k.copy(), v.copy()) for k, v in cache],
        ),
        Mistake(
            "the_other_way_round",
            "The rows go the other way: old row i is sent to place beam_index[i]. A swap of two beams looks the same "
            "either way, three in a circle do not, and a beam that goes on twice has no single place to be sent to.",
            "Does beam_index[0] say where new beam 0 comes from, or where old beam 0 goes?",
            lambda cache, beam_index: [(_scattered(k, beam_index), _scattered(v, beam_index)) for k, v in cache],
        ),
        Mistake(
            "heads_reordered",
            "The heads are reordered, axis 1. Beams are on axis 0.",
            "Which axis of (n_beams, n_kv_heads, n_total, head_dim) counts beams?",
            lambda cache, beam_index: [(k[:, beam_index], v[:, beam_index]) for k, v in cache],
        ),
        Mistake(
            "tokens_reordered",
            "The tokens are reordered, axis 2. Beams are on axis 0.",
            "Which axis of (n_beams, n_kv_heads, n_total, head_dim) counts beams?",
            lambda cache, beam_index: [(k[:, :, beam_index], v[:, :, beam_index]) for k, v in cache],
        ),
        Mistake(
            "each_beam_once",
            "A beam that is chosen twice appears once. It has to go on twice, with another token each time.",
            "How many rows does the new cache need for a beam_index of three entries?",
            lambda cache, beam_index: _reorder(cache, np.array(list(dict.fromkeys(beam_index.tolist())))),
        ),
        Mistake(
            "row_after_row",
            "Rows are moved one after another within the same array: the second move reads a row that the first has "
            "already overwritten.",
            "After row 0 has been replaced, where is the old row 0 that row 1 is waiting for?",
            _row_after_row,
        ),
        Mistake(
            "list_changed",
            "The list that was handed in is changed. The caller's cache now holds the new beams; a new list was asked "
            "for.",
            "What does the caller find in its own cache after your function has returned?",
            _in_place,
        ),
        Mistake(
            "arrays_overwritten",
            "The new rows are written into the old arrays: what the caller still holds is changed.",
            "What does the caller find in its own k after your function has returned?",
            _into_the_old_arrays,
        ),
        Mistake(
            "handed_back_when_nothing_moves",
            "When every beam stays in its place the old arrays themselves come back: the next step's writes then "
            "reach the old cache.",
            "Is an array that was handed through a copy of it?",
            _same_when_nothing_moves,
        ),
        Mistake(
            "one_row_for_all_beams",
            "Beams that go on from one beam share one row of memory: what one of them writes, all of them read.",
            "Two beams go on from the same one with different tokens. Where does each of them write its own?",
            _one_view_for_all,
        ),
    ],
)


class _Model:
    """A stand-in for a decoder: what it says depends on the whole text, which it reads out of the cache.

    The cache is that of reorder_cache with 2 layers, 1 head and a head width of 1: keys and values hold the token ids,
    each array shifted by a number of its own. A row that belongs to another beam gives other log-probabilities.
    """

    SHIFTS = (0, 1000, 2000, 3000)

    def __init__(self, vocab: int, log_probs_of: Callable[[list[list[int]]], np.ndarray], most_calls: int) -> None:
        self.vocab = vocab
        self.log_probs_of = log_probs_of
        self.most_calls = most_calls
        self.fed: list[tuple[int, int]] = []

    def step(self, tokens: Any, cache: Any) -> tuple[np.ndarray, list[tuple[np.ndarray, np.ndarray]]]:
        ids = self._ids(tokens, cache)
        n = len(ids)
        arrays = [ids[:, None, :, None] + float(shift) for shift in self.SHIFTS]
        if cache is not None:
            layers = _layers(cache, 2, "the cache given to step")
            old = [self._old(x, n) for layer in layers for x in layer]
            arrays = [np.concatenate([a, b], axis=2) for a, b in zip(old, arrays, strict=True)]
        log_probs = [self.log_probs_of(self._texts(arrays, i)) for i in range(n)]
        return np.array(log_probs).reshape(n, self.vocab), [(arrays[0], arrays[1]), (arrays[2], arrays[3])]

    def _ids(self, tokens: Any, cache: Any) -> np.ndarray:
        ids = np.asarray(tokens)
        if ids.ndim != 2 or ids.dtype.kind not in "iu":
            raise Malformed(f"step: tokens must be ints of shape (n, t), got {ids.dtype} of shape {ids.shape}")
        if ids.size and not 0 <= ids.min() <= ids.max() < self.vocab:
            raise Malformed(f"step: tokens must be 0 to {self.vocab - 1}, got {ids.min()} to {ids.max()}")
        if len(self.fed) == self.most_calls:
            raise Malformed(f"step was called more than {self.most_calls} times, expected one call a new token")
        if not self.fed and cache is not None:
            raise Malformed("step: the cache must be None in the first call")
        self.fed.append((ids.shape[0], ids.shape[1]))
        return ids

    def _old(self, x: Any, n: int) -> np.ndarray:
        if not isinstance(x, np.ndarray) or x.ndim != 4 or x.shape[1] != 1 or x.shape[3] != 1:
            raise Malformed("step: the cache must be what reorder_cache makes of the one that step gave back")
        if len(x) != n:
            raise Malformed(f"step was given {n} rows of tokens and a cache of {len(x)} beams")
        return x

    def _texts(self, arrays: list[np.ndarray], row: int) -> list[list[int]]:
        """The row's text as each of the four arrays has it; all the same, if the cache is right."""
        return [
            np.abs(a[row, 0, :, 0] - shift).astype(np.int64).tolist()
            for a, shift in zip(arrays, self.SHIFTS, strict=True)
        ]


def _after(table: Sequence[Sequence[float]]) -> Callable[[list[list[int]]], np.ndarray]:
    """Log-probabilities that depend on the last token alone: row t of the table follows token t."""
    with np.errstate(divide="ignore"):
        logs = np.log(np.array(table, dtype=float))
    return lambda texts: logs[texts[0][-1]]


def _chances(seed: int, texts: list[list[int]]) -> np.random.Generator:
    return np.random.default_rng([seed, *(token for text in texts for token in text)])


def _whole_text(seed: int, vocab: int, lower: float = 0.0) -> Callable[[list[list[int]]], np.ndarray]:
    """Log-probabilities that depend on every token in each of the four arrays."""

    def log_probs_of(texts: list[list[int]]) -> np.ndarray:
        return np.log(_chances(seed, texts).random(vocab)) - lower

    return log_probs_of


def _tied(seed: int, vocab: int) -> Callable[[list[list[int]]], np.ndarray]:
    """The same in whole and half numbers, so that sums are exact and often equal."""
    return lambda texts: -_chances(seed, texts).integers(1, 4, vocab) / 2


def _searching(
    describe: str,
    vocab: int,
    log_probs_of: Callable[[list[list[int]]], np.ndarray],
    prompt: Sequence[int],
    n_beams: int,
    n_new: int,
) -> Probe:
    def run(submission: Callable[..., Any]) -> Observation:
        model, ids = _Model(vocab, log_probs_of, n_new + 2), np.array(prompt)
        tokens, scores = pair(submission(model.step, ids, n_beams, n_new), "beam_search")
        seen = {"the shape of the tokens": np.shape(observe(tokens))} if n_new == 0 else {"the tokens": observe(tokens)}
        return seen | {
            "the scores": observe(scores),
            "the shapes of the tokens given to step": tuple(model.fed),
            "the prompt afterwards": "unchanged" if ids.tolist() == list(prompt) else "changed",
        }

    call = f"beam_search(step, np.array({list(prompt)}), n_beams={n_beams}, n_new={n_new})"
    return Probe(f"{call}\n{describe}", run)


def _table(table: Sequence[Sequence[float]], prompt: Sequence[int], n_beams: int, n_new: int) -> Probe:
    rows = "; ".join(f"{t}: {', '.join(f'{p:g}' for p in row)}" for t, row in enumerate(table))
    described = f"probabilities of tokens 0 to {len(table) - 1}, after token {rows}"
    return _searching(described, len(table), _after(table), prompt, n_beams, n_new)


def _seeded(seed: int, vocab: int, prompt: Sequence[int], n_beams: int, n_new: int, lower: float = 0.0) -> Probe:
    less = f", all below {-lower:g}" if lower else ""
    described = f"{vocab} tokens, log-probabilities that depend on the whole text{less}"
    return _searching(described, vocab, _whole_text(seed, vocab, lower), prompt, n_beams, n_new)


def _ties(seed: int, vocab: int, prompt: Sequence[int], n_beams: int, n_new: int) -> Probe:
    described = f"{vocab} tokens, log-probabilities of -0.5, -1 and -1.5: many equal sums"
    return _searching(described, vocab, _tied(seed, vocab), prompt, n_beams, n_new)


def _equally_likely(vocab: int, n_beams: int, n_new: int) -> Probe:
    described = f"all of {vocab} tokens equally likely, log-probability -1"
    return _searching(described, vocab, lambda texts: np.full(vocab, -1.0), [1], n_beams, n_new)


# The second beam overtakes: 0.5 * 0.4 = 0.20 against 0.4 * 0.9 = 0.36.
OVERTAKE = [[0.4, 0.35, 0.25], [0.05, 0.05, 0.9], [0.5, 0.4, 0.1]]
FORBIDDEN = [[0.7, 0.0, 0.3], [0.5, 0.5, 0.0], [0.0, 1.0, 0.0]]


def _beam_search(step: Any, prompt: np.ndarray, n_beams: int, n_new: int) -> tuple[np.ndarray, np.ndarray]:
    return beams.beam_search(step, prompt, n_beams, n_new, _reorder)


def _stable(totals: np.ndarray, n_beams: int) -> tuple[np.ndarray, np.ndarray]:
    """The best entries of (beams, vocab), of equal ones the lower beam and then the lower id first."""
    best = np.argsort(-totals, axis=None, kind="stable")[:n_beams]
    beam_index, ids = np.unravel_index(best, totals.shape)
    return beam_index, ids


def _ties_reversed(totals: np.ndarray, n_beams: int) -> tuple[np.ndarray, np.ndarray]:
    beam_index, ids = np.unravel_index(np.argsort(totals, axis=None, kind="stable")[::-1][:n_beams], totals.shape)
    return beam_index, ids


def _ties_by_id(totals: np.ndarray, n_beams: int) -> tuple[np.ndarray, np.ndarray]:
    ids, beam_index = _stable(totals.T, n_beams)
    return beam_index, ids


def _each_its_own(totals: np.ndarray, n_beams: int) -> tuple[np.ndarray, np.ndarray]:
    """Every beam goes on with its own best token; only the first step spreads out."""
    if len(totals) == 1:
        return _stable(totals, n_beams)
    return np.arange(len(totals)), totals.argmax(axis=1)


def _one_child_each(totals: np.ndarray, n_beams: int) -> tuple[np.ndarray, np.ndarray]:
    """The same, and then sorted by score."""
    beam_index, ids = _each_its_own(totals, n_beams)
    order = np.argsort(-totals[beam_index, ids], kind="stable")
    return beam_index[order], ids[order]


def _never_more_rows(totals: np.ndarray, n_beams: int) -> tuple[np.ndarray, np.ndarray]:
    return _stable(totals, min(n_beams, totals.shape[1]))


def _without_impossible(totals: np.ndarray, n_beams: int) -> tuple[np.ndarray, np.ndarray]:
    beam_index, ids = _stable(totals, n_beams)
    possible = np.isfinite(totals[beam_index, ids])
    return beam_index[possible], ids[possible]


def _by_n_beams(totals: np.ndarray, n_beams: int) -> tuple[np.ndarray, np.ndarray]:
    best = np.argsort(-totals, axis=None, kind="stable")[:n_beams]
    return best // n_beams % len(totals), best % totals.shape[1]


def _spread_only(cache: Cache, beam_index: np.ndarray) -> Cache:
    """One row becomes as many as there are beams; afterwards rows stay where they are."""
    n = len(cache[0][0])
    return _reorder(cache, beam_index if n == 1 else np.arange(len(beam_index)) % n)


def _sorted_rows(cache: Cache, beam_index: np.ndarray) -> Cache:
    return _reorder(cache, np.sort(beam_index))


def _spoiled(
    choose: Callable[..., Any] = _stable,
    reorder: Callable[..., Any] = _reorder,
    total: Callable[..., Any] = lambda scores, log_probs: scores[:, None] + log_probs,
    start: float = 0.0,
    finish: Callable[..., Any] = lambda tokens, scores, prompt: (tokens, scores),
    tokens_follow: bool = True,
    n_rows: Callable[[int], int] = lambda n_beams: 1,
    least_new: int = 0,
    empty: Callable[[int], int] = lambda n_beams: n_beams,
    more_calls: int = 0,
) -> Callable[..., Any]:
    """A right search, spoiled by one of its arguments."""

    def wrong(step: Any, prompt: np.ndarray, n_beams: int, n_new: int) -> Any:
        n_new = max(n_new, least_new)
        if n_new == 0:
            return np.zeros((empty(n_beams), 0), int), np.zeros(empty(n_beams))
        n = n_rows(n_beams)
        tokens, scores, cache = np.zeros((n, 0), int), np.full(n, start), None
        fed = np.repeat(prompt[None], n, axis=0)
        for _ in range(n_new):
            log_probs, cache = step(fed, cache)
            totals = total(scores, log_probs)
            beam_index, ids = choose(totals, n_beams)
            history = tokens[beam_index] if tokens_follow or len(tokens) != len(ids) else tokens
            tokens, scores = np.concatenate([history, ids[:, None]], axis=1), totals[beam_index, ids]
            cache = reorder(cache, beam_index)
            fed = ids[:, None]
        for _ in range(more_calls):
            step(fed, cache)
        return finish(tokens, scores, prompt)

    return wrong


def _one_step_late() -> Callable[..., Any]:
    """The cache is reordered by the choice before the last one."""

    def wrong(step: Any, prompt: np.ndarray, n_beams: int, n_new: int) -> Any:
        before: list[np.ndarray] = []

        def reorder(cache: Cache, beam_index: np.ndarray) -> Cache:
            late = before[-1] if before and len(before[-1]) == len(beam_index) else beam_index
            before.append(beam_index)
            return _reorder(cache, late)

        return _spoiled(reorder=reorder)(step, prompt, n_beams, n_new)

    return wrong


def _recomputed(step: Any, prompt: np.ndarray, n_beams: int, n_new: int) -> Any:
    """The whole text of every beam goes in at each step, with no cache."""
    tokens, scores = np.zeros((1, 0), int), np.zeros(1)
    if n_new == 0:
        return np.zeros((n_beams, 0), int), np.zeros(n_beams)
    for _ in range(n_new):
        log_probs, _ = step(np.concatenate([np.repeat(prompt[None], len(tokens), axis=0), tokens], axis=1), None)
        totals = scores[:, None] + log_probs
        beam_index, ids = _stable(totals, n_beams)
        tokens, scores = np.concatenate([tokens[beam_index], ids[:, None]], axis=1), totals[beam_index, ids]
    return tokens, scores


BEAM_SEARCH = Exercise(
    id="beam_search",
    reference=_beam_search,
    stages=[
        Stage("one beam takes the likeliest token each time", [_table(OVERTAKE, [2], 1, 2)]),
        Stage("one new token: the best tokens, with their log-probabilities", [_table(OVERTAKE, [2], 2, 1)]),
        Stage(
            "a beam behind may overtake: scores add up", [_table(OVERTAKE, [0, 0], 2, 2), _table(OVERTAKE, [2], 3, 3)]
        ),
        Stage(
            "tokens and cache follow the beams",
            [_seeded(2, 5, [4, 0, 2], 2, 3), _seeded(1, 6, [1, 3], 4, 6), _seeded(3, 7, [5], 3, 8)],
        ),
        Stage(
            "of equal scores the lower beam comes first, then the lower id",
            [_equally_likely(4, 3, 1), _equally_likely(4, 3, 2), _ties(0, 5, [2, 0], 4, 5)],
        ),
        Stage("scores far below what a probability can hold", [_seeded(4, 5, [0, 1], 3, 4, lower=400.0)]),
        Stage("fewer continuations than beams at first", [_seeded(5, 3, [1], 5, 2), _seeded(6, 3, [0, 2], 20, 4)]),
        Stage("-inf is the lowest score", [_table(FORBIDDEN, [0], 3, 1), _table(FORBIDDEN, [2, 0], 2, 3)]),
        Stage("no new token, no call", [_seeded(7, 4, [3, 1], 3, 0)]),
    ],
    mistakes=[
        Mistake(
            "cache_not_reordered",
            "The cache is spread over the beams once and never reordered: when beam 0 goes on from beam 1, it reads "
            "on in a text that is not its own. Nothing crashes.",
            "After the beams have changed places, whose keys and values stand in row 0 of the cache?",
            _spoiled(reorder=_spread_only),
        ),
        Mistake(
            "reordered_one_step_late",
            "The cache is reordered by the choice before the last one: each time the rows are one step behind.",
            "Which choice of beams do the tokens that you are about to feed belong to?",
            _one_step_late(),
        ),
        Mistake(
            "cache_sorted",
            "The rows of the chosen beams are in the cache, in the order of their numbers and not of the new beams.",
            "In which order do the new beams stand, and in which order their rows?",
            _spoiled(reorder=_sorted_rows),
        ),
        Mistake(
            "values_from_keys",
            "The values of the new cache are made from the keys: shapes agree and nothing crashes.",
            "Which of the two arrays does your line for the values index?",
            _spoiled(reorder=lambda cache, index: [(k[index], k[index]) for k, _ in cache]),
        ),
        Mistake(
            "only_keys_reordered",
            "The keys follow the beams and the values do not.",
            "Which arrays of a layer belong to a beam?",
            _spoiled(reorder=lambda cache, index: [(k[index], _spread_only([(v, v)], index)[0][0]) for k, v in cache]),
        ),
        Mistake(
            "tokens_do_not_follow",
            "The cache follows the beams and the tokens collected so far do not: a new token is put behind the text of "
            "whatever beam stood in its place.",
            "New beam 0 goes on from old beam 1. Which tokens are its beginning?",
            _spoiled(tokens_follow=False),
        ),
        Mistake(
            "probabilities_added",
            "Probabilities are added up. Those of a text's tokens are multiplied; it is their logarithms that add up.",
            "How likely is a text of two tokens that have probability 0.5 each?",
            _spoiled(total=lambda scores, log_probs: scores[:, None] + np.exp(log_probs)),
        ),
        Mistake(
            "probabilities_multiplied",
            "Probabilities are multiplied and the logarithm is taken at the end. That is right on paper; long texts "
            "have probabilities so small that they become 0, and then all beams look alike.",
            "What is 1e-200 times 1e-200 in 64 bits?",
            _spoiled(
                total=lambda scores, log_probs: scores[:, None] * np.exp(log_probs),
                start=1.0,
                finish=lambda tokens, scores, prompt: (tokens, np.log(scores)),
            ),
        ),
        Mistake(
            "last_token_only",
            "The score is that of the newest token alone: what a beam has cost so far is forgotten.",
            "Beam 1 began with a token of probability 0.01. Where does its score still know that?",
            _spoiled(total=lambda scores, log_probs: log_probs),
        ),
        Mistake(
            "divided_by_length",
            "Scores are divided by the number of tokens. Here a score is the plain sum.",
            "What is the score of two tokens with log-probability -1 each?",
            _spoiled(finish=lambda tokens, scores, prompt: (tokens, scores / max(tokens.shape[1], 1))),
        ),
        Mistake(
            "each_beam_on_its_own",
            "Every beam goes on with its own best token: these are greedy texts side by side. Beams compete, so that "
            "one may go on several times and another end.",
            "What happens to beam 1 when the two best continuations both belong to beam 0?",
            _spoiled(choose=_each_its_own),
        ),
        Mistake(
            "one_child_each",
            "Every beam goes on exactly once, and the results are then sorted. The second best continuation of a good "
            "beam may be better than the best of a poor one.",
            "What happens to beam 1 when the two best continuations both belong to beam 0?",
            _spoiled(choose=_one_child_each),
        ),
        Mistake(
            "prompt_for_every_beam",
            "The prompt goes in once for every beam. The rows are all the same and so are their continuations: the "
            "best one is found n_beams times.",
            "Two beams with the same text and the same score: what will tell them apart in the next step?",
            _spoiled(n_rows=lambda n_beams: n_beams),
        ),
        Mistake(
            "everything_recomputed",
            "The whole text of every beam goes in at each step, without a cache. The beams are right, and the work "
            "grows with the square of the length.",
            "How many tokens of a beam has the cache not seen yet?",
            _recomputed,
        ),
        Mistake(
            "one_call_too_many",
            "After the last token has been chosen it is fed in as well: a call whose log-probabilities nobody uses.",
            "How many calls give the log-probabilities of n_new tokens?",
            _spoiled(more_calls=1),
        ),
        Mistake(
            "ties_from_the_end",
            "Of equal scores the last one is taken: a sort read backwards reverses equal entries too.",
            "In which order do two equal entries stand after argsort(...)[::-1]?",
            _spoiled(choose=_ties_reversed),
        ),
        Mistake(
            "ties_by_id_first",
            "Of equal scores the lower id is taken whatever its beam. Here the lower beam comes first.",
            "In which order do beams and ids stand in your flattened table?",
            _spoiled(choose=_ties_by_id),
        ),
        Mistake(
            "divided_by_n_beams",
            "The beam of an entry is found with n_beams. In the flattened table a beam's entries are vocab long.",
            "How many entries of the flattened table belong to one beam?",
            _spoiled(choose=_by_n_beams),
        ),
        Mistake(
            "worst_first",
            "The beams come back worst first.",
            "Which end of an ascending sort is the best score?",
            _spoiled(finish=lambda tokens, scores, prompt: (tokens[::-1], scores[::-1])),
        ),
        Mistake(
            "prompt_included",
            "The prompt comes back in front of the new tokens: only the n_new new ones are asked for.",
            "How many columns does an answer of n_new tokens have?",
            _spoiled(
                finish=lambda tokens, scores, prompt: (
                    np.concatenate([np.repeat(prompt[None], len(tokens), axis=0), tokens], axis=1),
                    scores,
                )
            ),
        ),
        Mistake(
            "never_more_beams_than_tokens",
            "There are never more beams than the vocabulary has tokens. That holds after the first step only: from "
            "then on there are more continuations to choose from.",
            "How many continuations do 3 beams have with a vocabulary of 3?",
            _spoiled(choose=_never_more_rows),
        ),
        Mistake(
            "impossible_beams_dropped",
            "Beams with a score of -inf are left out, so that fewer than n_beams come back. Here -inf is a score like "
            "any other, the lowest.",
            "How many rows does the caller expect?",
            _spoiled(choose=_without_impossible),
        ),
        Mistake(
            "always_one_token",
            "At least one token is generated: the prompt goes in before anybody has asked how many are wanted.",
            "How often is step needed for no new token?",
            _spoiled(least_new=1),
        ),
        Mistake(
            "one_empty_beam",
            "With no new token one empty beam comes back, the one that the search begins with. Asked for are n_beams.",
            "How many rows does the caller expect when n_new is 0?",
            _spoiled(empty=lambda n_beams: 1),
        ),
    ],
)

EXERCISES = [REORDER_CACHE, BEAM_SEARCH]
