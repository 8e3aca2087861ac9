"""Checks for lesson 02: the cache, a step that uses it, and what it saves."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kvlab.attention import attention, merge_heads, split_heads
from kvlab.caches import ConcatCache
from kvlab.checks.model import Exercise, Malformed, Mistake, Observation, Probe, Stage, call, observe, pair
from kvlab.trace import counted

N_KV_HEADS, HEAD_DIM = 2, 4


def _rows(n_tokens: int, dtype: Any = np.float64, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed + n_tokens)
    k, v = (rng.standard_normal((N_KV_HEADS, n_tokens, HEAD_DIM)).astype(dtype) for _ in range(2))
    return k, v


def _length(cache: Any) -> Any:
    try:
        return len(cache)
    except TypeError as error:
        raise Malformed(f"len(cache): {error}") from None


def _append(cache: Any, k_new: np.ndarray, v_new: np.ndarray) -> tuple[Any, Any]:
    return pair(cache.append(k_new, v_new), "append")


def _appends(sizes: Sequence[int], dtype: Any = np.float64) -> Probe:
    """Append chunks of the given sizes; look at everything each append returns."""
    k, v = _rows(sum(sizes), dtype)

    def run(make: Any) -> Observation:
        cache, at = make(N_KV_HEADS, HEAD_DIM), 0
        seen: Observation = {}
        for n_new in sizes:
            chunk = slice(at, at := at + n_new)
            k_all, v_all = _append(cache, k[:, chunk].copy(), v[:, chunk].copy())
            after = f"after {at} tokens"
            seen |= {f"k {after}": observe(k_all), f"v {after}": observe(v_all), f"len {after}": _length(cache)}
        return seen

    kind = "" if dtype is np.float64 else f" of {np.dtype(dtype)}"
    chunks = "one chunk of" if len(sizes) == 1 else "chunks of"
    return Probe(f"append {chunks} {', '.join(map(str, sizes))} tokens{kind}", run, 1e-9)


def _dtype(dtype: Any) -> Probe:
    def run(make: Any) -> Observation:
        cache = make(N_KV_HEADS, HEAD_DIM)
        for seed in range(2):
            k_all, v_all = _append(cache, *_rows(3, dtype, seed))
        kinds = [str(getattr(observe(a), "dtype", type(a).__name__)) for a in (k_all, v_all)]
        return {"the dtype of k and v": tuple(kinds)}

    return Probe(f"append {np.dtype(dtype)} twice", run)


def _narrower_chunk(make: Any) -> Observation:
    """float64 rows stay as exact as they were when a float32 chunk follows."""
    cache = make(N_KV_HEADS, HEAD_DIM)
    _append(cache, *_rows(3))
    k_all, v_all = _append(cache, *_rows(2, np.float32, seed=1))
    return {"k": observe(k_all), "v": observe(v_all)}


def _new_cache_is_empty(make: Any) -> Observation:
    return {"len": _length(make(N_KV_HEADS, HEAD_DIM))}


def _zeros_are_tokens(make: Any) -> Observation:
    cache = make(N_KV_HEADS, HEAD_DIM)
    zeros = np.zeros((N_KV_HEADS, 2, HEAD_DIM))
    _append(cache, zeros, zeros.copy())
    k_all, _ = _append(cache, *_rows(1))
    return {"len": _length(cache), "the shape of k": getattr(observe(k_all), "shape", None)}


def _inputs_changed_later(make: Any) -> Observation:
    cache = make(N_KV_HEADS, HEAD_DIM)
    k_new, v_new = _rows(3)
    k_first, v_first = _append(cache, k_new, v_new)
    k_new[:], v_new[:] = 7.0, 7.0  # the caller reuses its arrays
    k_all, v_all = _append(cache, *_rows(1, seed=1))
    return {
        "k of the next append": observe(k_all),
        "v of the next append": observe(v_all),
        "k that the first append returned": observe(k_first),
        "v that the first append returned": observe(v_first),
    }


def _results_kept(make: Any) -> Observation:
    cache = make(N_KV_HEADS, HEAD_DIM)
    kept = [_append(cache, *_rows(n, seed=n)) for n in (3, 1, 2)]
    _append(cache, *_rows(4, seed=4))
    return {
        f"k returned by append {i + 1}, looked at after all appends": observe(k_all)
        for i, (k_all, _) in enumerate(kept)
    } | {f"v returned by append {i + 1}": observe(v_all) for i, (_, v_all) in enumerate(kept)}


def _inputs_unchanged(make: Any) -> Observation:
    cache, (k_new, v_new) = make(N_KV_HEADS, HEAD_DIM), _rows(3)
    before = k_new.copy(), v_new.copy()
    _append(cache, k_new, v_new)
    _append(cache, *_rows(2))
    same = np.array_equal(before[0], k_new) and np.array_equal(before[1], v_new)
    return {"k_new and v_new afterwards": "unchanged" if same else "changed"}


def _two_caches(make: Any) -> Observation:
    first, second = make(N_KV_HEADS, HEAD_DIM), make(N_KV_HEADS, HEAD_DIM)
    _append(first, *_rows(3))
    k_second, _ = _append(second, *_rows(2))
    k_first, _ = _append(first, *_rows(1))
    return {
        "k of the second cache": observe(k_second),
        "k of the first cache": observe(k_first),
        "their lengths": (_length(first), _length(second)),
    }


def _other_shape(make: Any) -> Observation:
    cache = make(3, 5)
    k = np.arange(3 * 7 * 5, dtype=np.float64).reshape(3, 7, 5)
    _append(cache, k[:, :6], k[:, :6] + 0.5)
    k_all, v_all = _append(cache, k[:, 6:], k[:, 6:] + 0.5)
    return {"k": observe(k_all), "v": observe(v_all), "len": _length(cache)}


class _Wrong:
    """A right cache that the mistakes below spoil in one place each."""

    def __init__(self, n_kv_heads: int, head_dim: int) -> None:
        self.shape = (n_kv_heads, head_dim)
        self.k: Any = None
        self.v: Any = None

    def grow(self, old: Any, new: np.ndarray) -> np.ndarray:
        return new.copy() if old is None else np.concatenate([old, new], axis=1)

    def append(self, k_new: np.ndarray, v_new: np.ndarray) -> Any:
        self.k, self.v = self.grow(self.k, k_new), self.grow(self.v, v_new)
        return self.k, self.v

    def __len__(self) -> int:
        return 0 if self.k is None else self.k.shape[1]


class _Exchanged(_Wrong):
    def append(self, k_new: np.ndarray, v_new: np.ndarray) -> Any:
        k, v = super().append(k_new, v_new)
        return v, k


class _KeysAsValues(_Wrong):
    def append(self, k_new: np.ndarray, v_new: np.ndarray) -> Any:
        return super().append(k_new, k_new)


class _FirstLost(_Wrong):
    """An early return for the empty cache, which forgets to store."""

    ready = False

    def append(self, k_new: np.ndarray, v_new: np.ndarray) -> Any:
        if not self.ready:
            self.ready = True
            return k_new.copy(), v_new.copy()
        return super().append(k_new, v_new)


class _ReadBeforeAppend(_Wrong):
    def append(self, k_new: np.ndarray, v_new: np.ndarray) -> Any:
        nothing = k_new[:, :0]
        before = (nothing, nothing) if self.k is None else (self.k, self.v)
        super().append(k_new, v_new)
        return before


class _OnlyNew(_Wrong):
    def append(self, k_new: np.ndarray, v_new: np.ndarray) -> Any:
        super().append(k_new, v_new)
        return k_new.copy(), v_new.copy()


class _Overwrites(_Wrong):
    def grow(self, old: Any, new: np.ndarray) -> np.ndarray:
        return new.copy()


class _SlotZero(_Wrong):
    """Writes every chunk to the buffer's beginning."""

    def grow(self, old: Any, new: np.ndarray) -> np.ndarray:
        grown = np.zeros((new.shape[0], (0 if old is None else old.shape[1]) + new.shape[1], new.shape[2]), new.dtype)
        if old is not None:
            grown[:, : old.shape[1]] = old
        grown[:, : new.shape[1]] = new
        return grown


class _NewestFirst(_Wrong):
    def grow(self, old: Any, new: np.ndarray) -> np.ndarray:
        return new.copy() if old is None else np.concatenate([new, old], axis=1)


class _HeadAxis(_Wrong):
    def grow(self, old: Any, new: np.ndarray) -> np.ndarray:
        return new.copy() if old is None else np.concatenate([old, new], axis=0)


class _ChannelAxis(_Wrong):
    def grow(self, old: Any, new: np.ndarray) -> np.ndarray:
        return new.copy() if old is None else np.concatenate([old, new], axis=-1)


class _NewStrides(_Wrong):
    """Enlarges the buffer by reading the same numbers in the same order under a new shape."""

    def grow(self, old: Any, new: np.ndarray) -> np.ndarray:
        n_old = 0 if old is None else old.shape[1]
        grown = np.zeros((new.shape[0], n_old + new.shape[1], new.shape[2]), new.dtype)
        if old is not None:
            grown.reshape(-1)[: old.size] = old.reshape(-1)
        grown[:, n_old:] = new
        return grown


class _KeepsReference(_Wrong):
    def grow(self, old: Any, new: np.ndarray) -> np.ndarray:
        return new if old is None else np.concatenate([old, new], axis=1)


class _ReturnsGiven(_Wrong):
    """Stores a copy of the first chunk and hands the caller's own arrays back."""

    def append(self, k_new: np.ndarray, v_new: np.ndarray) -> Any:
        empty = self.k is None
        stored = super().append(k_new, v_new)
        return (k_new, v_new) if empty else stored


class _NewestDtype(_Wrong):
    def grow(self, old: Any, new: np.ndarray) -> np.ndarray:
        return super().grow(old, new).astype(new.dtype)


class _Shifting(_Wrong):
    """Keeps the newest row at the buffer's end and shifts the others down: views handed out before move along."""

    def __init__(self, n_kv_heads: int, head_dim: int) -> None:
        super().__init__(n_kv_heads, head_dim)
        self.buffers: list[np.ndarray] = []
        self.length = 0

    def append(self, k_new: np.ndarray, v_new: np.ndarray) -> Any:
        n_new = k_new.shape[1]
        if not self.buffers:
            self.buffers = [np.zeros((self.shape[0], 512, self.shape[1]), k_new.dtype) for _ in range(2)]
        self.length += n_new
        for buffer, new in zip(self.buffers, (k_new, v_new), strict=True):
            buffer[:] = np.concatenate([buffer, new], axis=1)[:, n_new:]
        return tuple(buffer[:, 512 - self.length :] for buffer in self.buffers)

    def __len__(self) -> int:
        return self.length


def _shared() -> type[_Wrong]:
    """State on the class: all caches are one."""

    class Shared(_Wrong):
        k: Any = None
        v: Any = None

        def __init__(self, n_kv_heads: int, head_dim: int) -> None:
            if Shared.k is not None and Shared.k.shape[::2] != (n_kv_heads, head_dim):
                Shared.k = Shared.v = None  # another model: what real code meets as an error in concatenate

        def append(self, k_new: np.ndarray, v_new: np.ndarray) -> Any:
            Shared.k, Shared.v = self.grow(Shared.k, k_new), self.grow(Shared.v, v_new)
            return Shared.k, Shared.v

    return Shared


class _NonzeroRows(_Wrong):
    """Takes rows of zeros for slots that nobody has written."""

    def append(self, k_new: np.ndarray, v_new: np.ndarray) -> Any:
        k, v = super().append(k_new, v_new)
        filled = np.abs(k).sum(axis=(0, 2)) > 0
        return k[:, filled], v[:, filled]

    def __len__(self) -> int:
        return 0 if self.k is None else int((np.abs(self.k).sum(axis=(0, 2)) > 0).sum())


class _DefaultDtype(_Wrong):
    def grow(self, old: Any, new: np.ndarray) -> np.ndarray:
        grown = np.zeros((new.shape[0], (0 if old is None else old.shape[1]) + new.shape[1], new.shape[2]))
        if old is not None:
            grown[:, : old.shape[1]] = old
        grown[:, grown.shape[1] - new.shape[1] :] = new
        return grown


class _EmptyChunkRaises(_Wrong):
    def append(self, k_new: np.ndarray, v_new: np.ndarray) -> Any:
        if k_new.shape[1] == 0:
            raise ValueError("nothing to append")
        return super().append(k_new, v_new)


class _EmptyChunkReturnsNothing(_Wrong):
    def append(self, k_new: np.ndarray, v_new: np.ndarray) -> Any:
        return (k_new, v_new) if k_new.shape[1] == 0 else super().append(k_new, v_new)


class _CountsAppends(_Wrong):
    count = 0

    def append(self, k_new: np.ndarray, v_new: np.ndarray) -> Any:
        self.count += 1
        return super().append(k_new, v_new)

    def __len__(self) -> int:
        return self.count


class _CountsHeads(_Wrong):
    def __len__(self) -> int:
        return 0 if self.k is None else len(self.k)


class _Limited(_Wrong):
    def grow(self, old: Any, new: np.ndarray) -> np.ndarray:
        return super().grow(old, new)[:, :64]


KV_CACHE = Exercise(
    id="KVCache",
    is_class=True,
    reference=ConcatCache,
    stages=[
        Stage("a new cache is empty", [Probe("len(KVCache(2, 4))", _new_cache_is_empty)]),
        Stage("a first chunk comes back as it went in", [_appends([1]), _appends([3])]),
        Stage("later tokens follow the earlier ones", [_appends([1, 1]), _appends([3, 1]), _appends([3, 1, 2])]),
        Stage("other head counts and widths", [Probe("KVCache(3, 5), chunks of 6 and 1 tokens", _other_shape)]),
        Stage("an empty chunk returns what is stored", [_appends([2, 0, 1]), _appends([0, 2])]),
        Stage("a token whose key is all zeros is a token", [Probe("append 2 zero tokens, then 1", _zeros_are_tokens)]),
        Stage(
            "two caches know nothing of each other",
            [Probe("3 tokens to one cache, 2 to another, 1 to the first", _two_caches)],
        ),
        Stage(
            "it keeps its own copy",
            [
                Probe("append k_new and v_new, then overwrite both arrays", _inputs_changed_later),
                Probe("append k_new and v_new, then look at them", _inputs_unchanged),
            ],
        ),
        Stage(
            "what it returned earlier does not change",
            [Probe("keep what four appends return (3, 1, 2, 4 tokens)", _results_kept)],
        ),
        Stage(
            "the dtype is that of the first append",
            [
                _dtype(np.float32),
                _dtype(np.float16),
                Probe("append 3 tokens of float64, then 2 of float32", _narrower_chunk),
            ],
        ),
        Stage("it has no limit of its own", [_appends([1] * 3 + [200, 150])]),
    ],
    mistakes=[
        Mistake(
            "exchanged",
            "Keys and values come back exchanged.",
            "In which order does append promise to return its two arrays?",
            _Exchanged,
        ),
        Mistake(
            "keys_as_values",
            "The keys are stored as values too: v_new is never looked at.",
            "Which of its two arguments does your append store where?",
            _KeysAsValues,
        ),
        Mistake(
            "first_append_lost",
            "The first append returns early, without storing: the first tokens are never in the cache.",
            "After the first append, what is len(cache)?",
            _FirstLost,
        ),
        Mistake(
            "read_before_append",
            "What is returned was read before the append: the new tokens are missing, and could not see themselves.",
            "Should a new token's own key be among the keys that its query looks at?",
            _ReadBeforeAppend,
        ),
        Mistake(
            "returns_only_new",
            "Only the new rows come back. Attention needs all of them: the cache stores and nobody reads it.",
            "Over how many keys must one new token attend when 5 are cached?",
            _OnlyNew,
        ),
        Mistake(
            "keeps_only_newest",
            "Each append replaces what was stored: the cache holds the newest chunk only.",
            "What is len(cache) after appends of 3 and 1 tokens?",
            _Overwrites,
        ),
        Mistake(
            "writes_to_slot_zero",
            "Every chunk is written to the beginning of the buffer, over the first tokens; slots behind stay empty.",
            "Into which slot does the next token go when 3 are stored?",
            _SlotZero,
        ),
        Mistake(
            "newest_first",
            "New rows are put in front of the old ones. The order is oldest first, the order of the positions.",
            "Which row of k belongs to the first token of the text?",
            _NewestFirst,
        ),
        Mistake(
            "joined_along_heads",
            "The arrays are joined along the first axis: the cache grows in heads, not in tokens.",
            "Which axis of (n_kv_heads, n_total, head_dim) counts tokens?",
            _HeadAxis,
        ),
        Mistake(
            "joined_along_channels",
            "The arrays are joined along the last axis: the rows grow wider, where there should be more of them.",
            "Which axis of (n_kv_heads, n_total, head_dim) counts tokens?",
            _ChannelAxis,
        ),
        Mistake(
            "same_numbers_new_shape",
            "The buffer grows by reading the same numbers under a new shape: rows of head 1 slide into head 0.",
            "In memory, what follows the last row of head 0, and where is it after the token axis has grown?",
            _NewStrides,
        ),
        Mistake(
            "keeps_a_reference",
            "The first chunk is kept by reference: when the caller reuses its array, the cache changes too.",
            "After `self.k = k_new`, how many arrays are there?",
            _KeepsReference,
        ),
        Mistake(
            "returns_what_it_was_given",
            "The first append stores a copy and returns the caller's own arrays: when the caller reuses them, what was "
            "returned changes.",
            "Which array do you hand back from the first append, yours or the caller's?",
            _ReturnsGiven,
        ),
        Mistake(
            "newest_dtype",
            "The dtype follows the newest append: a float32 chunk rounds all float64 rows before it.",
            "Which append decides the dtype of the cache?",
            _NewestDtype,
        ),
        Mistake(
            "earlier_results_change",
            "What was returned earlier changes with the next append, since it is a view of memory that is rewritten.",
            "Which bytes does an array you returned two appends ago look at now?",
            _Shifting,
        ),
        Mistake(
            "shared_by_all_caches",
            "All caches share one store: every layer and every text would append to the same rows.",
            "Where do your arrays live, on the object or on the class?",
            _shared,
            fresh=True,
        ),
        Mistake(
            "zeros_taken_for_empty",
            "Rows of zeros are taken for empty slots. How many slots are filled is a number to keep, not to guess.",
            "Can a key that a model computed be all zeros?",
            _NonzeroRows,
        ),
        Mistake(
            "default_dtype",
            "A buffer is made with NumPy's default dtype, so float32 comes back as float64, twice as large.",
            "What dtype does np.zeros give when it is not told one?",
            _DefaultDtype,
        ),
        Mistake(
            "empty_chunk_raises",
            "An append of no tokens raises. It should change nothing and return what is stored.",
            "What is the shape of k_new when a chunk is empty, and what does joining it change?",
            _EmptyChunkRaises,
        ),
        Mistake(
            "empty_chunk_returns_nothing",
            "An append of no tokens returns the empty chunk, where everything stored belongs.",
            "What should an append return when nothing is new and 2 tokens are stored?",
            _EmptyChunkReturnsNothing,
        ),
        Mistake(
            "len_counts_appends",
            "len counts the appends. One append may bring many tokens.",
            "What is len(cache) after one append of 3 tokens?",
            _CountsAppends,
        ),
        Mistake(
            "len_counts_heads",
            "len is the first axis of the array, the KV heads.",
            "What does Python's len give for an array of shape (2, 5, 4)?",
            _CountsHeads,
        ),
        Mistake(
            "limited",
            "Tokens past a fixed number of slots are dropped without a word.",
            "What happens to token 65 in your cache?",
            _Limited,
        ),
    ],
)

D_MODEL, N_HEADS, STEP_HEAD_DIM = 10, 6, 4  # 6 query heads on 2 KV heads: no two axes are equal


class _SpyCache(ConcatCache):
    """A right cache that knows how it was used, and that a submission may hang things on."""

    appends: int = 0

    def append(self, k_new: Any, v_new: Any) -> Any:
        for name, rows in (("k_new", k_new), ("v_new", v_new)):
            shape = getattr(rows, "shape", None)
            if shape is None or len(shape) != 3 or (shape[0], shape[2]) != (self.n_kv_heads, self.head_dim):
                wanted = f"({self.n_kv_heads}, n_new, {self.head_dim})"
                raise Malformed(f"cache.append was given {name} of shape {shape}, this layer's cache takes {wanted}")
        return super().append(np.asarray(k_new), np.asarray(v_new))


def _weights(dtype: Any = np.float64) -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    widths = (N_HEADS * STEP_HEAD_DIM, N_KV_HEADS * STEP_HEAD_DIM, N_KV_HEADS * STEP_HEAD_DIM)
    return [(rng.standard_normal((D_MODEL, width)) / 2).astype(dtype) for width in widths]


def _run_steps(submission: Any, sizes: Sequence[int], dtype: Any = np.float64, seed: int = 5) -> Observation:
    x = np.random.default_rng(seed).standard_normal((sum(sizes), D_MODEL)).astype(dtype)
    weights = [counted(w) for w in _weights(dtype)]
    cache, at, outputs = _SpyCache(N_KV_HEADS, STEP_HEAD_DIM), 0, {}
    for n_new in sizes:
        chunk = slice(at, at := at + n_new)
        outputs[f"the output for tokens up to {at}"] = observe(
            submission(x[chunk].copy(), *weights, cache, N_HEADS, N_KV_HEADS)
        )
    nothing = np.zeros((N_KV_HEADS, 0, STEP_HEAD_DIM), dtype)
    k, v = cache.append(nothing, nothing)
    # A solution may hide the weights from the counter (np.asarray); it can only be seen to project too much.
    seen = tuple(max(w.rows_seen, sum(sizes)) for w in weights)
    return outputs | {
        "tokens in the cache": len(cache),
        "the stored keys": observe(k),
        "the stored values": observe(v),
        "tokens sent through wq, wk, wv": seen,
    }


def _steps(*sizes: int, dtype: Any = np.float64) -> Probe:
    kind = "" if dtype is np.float64 else f" of {np.dtype(dtype)}"
    chunks = "one chunk of" if len(sizes) == 1 else "chunks of"
    return Probe(
        f"step on {chunks} {', '.join(map(str, sizes))} tokens{kind}",
        lambda submission: _run_steps(submission, sizes, dtype),
        1e-9 if dtype is np.float64 else 1e-4,
    )


def _two_texts(submission: Any) -> Observation:
    """A second text with a cache of its own, after a first one."""
    first = _run_steps(submission, (3, 1), seed=6)
    second = _run_steps(submission, (2, 1), seed=7)
    return {f"text 1: {key}": value for key, value in first.items()} | {
        f"text 2: {key}": value for key, value in second.items()
    }


def _step_inputs_unchanged(submission: Any) -> Observation:
    x, weights = np.random.default_rng(8).standard_normal((3, D_MODEL)), _weights()
    before = [a.copy() for a in (x, *weights)]
    submission(x, *weights, _SpyCache(N_KV_HEADS, STEP_HEAD_DIM), N_HEADS, N_KV_HEADS)
    changed = not all(np.array_equal(a, b) for a, b in zip(before, (x, *weights), strict=True))
    return {"x and the weights afterwards": "changed" if changed else "unchanged"}


def _project(x: Any, wq: Any, wk: Any, wv: Any, n_heads: int, n_kv_heads: int) -> tuple[Any, Any, Any]:
    return split_heads(x @ wq, n_heads), split_heads(x @ wk, n_kv_heads), split_heads(x @ wv, n_kv_heads)


def _step(x: Any, wq: Any, wk: Any, wv: Any, cache: Any, n_heads: int, n_kv_heads: int) -> Any:
    q, k, v = _project(x, wq, wk, wv, n_heads, n_kv_heads)
    return merge_heads(attention(q, *cache.append(k, v)))


def _ignores_cache(x: Any, wq: Any, wk: Any, wv: Any, cache: Any, n_heads: int, n_kv_heads: int) -> Any:
    q, k, v = _project(x, wq, wk, wv, n_heads, n_kv_heads)
    cache.append(k, v)
    return merge_heads(attention(q, k, v))


def _never_appends(x: Any, wq: Any, wk: Any, wv: Any, cache: Any, n_heads: int, n_kv_heads: int) -> Any:
    return merge_heads(attention(*_project(x, wq, wk, wv, n_heads, n_kv_heads)))


def _recomputes(x: Any, wq: Any, wk: Any, wv: Any, cache: Any, n_heads: int, n_kv_heads: int) -> Any:
    """Right answers, and a cache that is filled and never used."""
    cache.text = np.concatenate([getattr(cache, "text", x[:0]), x])
    q, k, v = _project(cache.text, wq, wk, wv, n_heads, n_kv_heads)
    cache.append(k[:, len(cache) :], v[:, len(cache) :])
    out = merge_heads(attention(q, k, v))
    return out[len(out) - len(x) :]


def _recomputes_keys(x: Any, wq: Any, wk: Any, wv: Any, cache: Any, n_heads: int, n_kv_heads: int) -> Any:
    cache.text = np.concatenate([getattr(cache, "text", x[:0]), x])
    k, v = split_heads(cache.text @ wk, n_kv_heads), split_heads(cache.text @ wv, n_kv_heads)
    cache.append(k[:, len(cache) :], v[:, len(cache) :])
    return merge_heads(attention(split_heads(x @ wq, n_heads), k, v))


def _whole_text_appended(x: Any, wq: Any, wk: Any, wv: Any, cache: Any, n_heads: int, n_kv_heads: int) -> Any:
    """Feeds all tokens so far into the cache again, which then holds most of them twice."""
    cache.text = np.concatenate([getattr(cache, "text", x[:0]), x])
    q, k, v = _project(cache.text, wq, wk, wv, n_heads, n_kv_heads)
    out = merge_heads(attention(q, *cache.append(k, v)))
    return out[len(out) - len(x) :]


def _own_store() -> Callable[..., Any]:
    """A cache in a closure, of which every layer and every text gets the same one."""
    own = ConcatCache(N_KV_HEADS, STEP_HEAD_DIM)

    def wrong(x: Any, wq: Any, wk: Any, wv: Any, cache: Any, n_heads: int, n_kv_heads: int) -> Any:
        q, k, v = _project(x, wq, wk, wv, n_heads, n_kv_heads)
        cache.append(k, v)
        if len(cache) == len(x) and len(own) > 60:  # what real code meets as memory running out
            own.reset()
        return merge_heads(attention(q, *own.append(np.asarray(k, np.float64), np.asarray(v, np.float64))))

    return wrong


def _read_before_append(x: Any, wq: Any, wk: Any, wv: Any, cache: Any, n_heads: int, n_kv_heads: int) -> Any:
    """Attends over the past only, falling back to the new rows when there is none."""
    q, k, v = _project(x, wq, wk, wv, n_heads, n_kv_heads)
    k_past, v_past = cache.append(k[:, :0], v[:, :0])
    cache.append(k, v)
    if k_past.shape[1] == 0:
        return merge_heads(attention(q, k, v))
    mask = np.ones((len(x), k_past.shape[1]), bool)
    return merge_heads(attention(q, k_past, v_past, mask=mask))


def _heads_cut_wrong(x: Any, wq: Any, wk: Any, wv: Any, cache: Any, n_heads: int, n_kv_heads: int) -> Any:
    """Reshapes (tokens, width) straight to (heads, tokens, head_dim)."""
    widths = ((wq, n_heads), (wk, n_kv_heads), (wv, n_kv_heads))
    q, k, v = ((x @ w).reshape(n, len(x), w.shape[1] // n) for w, n in widths)
    return merge_heads(attention(q, *cache.append(k, v)))


def _heads_joined_wrong(x: Any, wq: Any, wk: Any, wv: Any, cache: Any, n_heads: int, n_kv_heads: int) -> Any:
    q, k, v = _project(x, wq, wk, wv, n_heads, n_kv_heads)
    return attention(q, *cache.append(k, v)).reshape(len(x), wq.shape[1])


def _heads_reshaped(x: Any, wq: Any, wk: Any, wv: Any, cache: Any, n_heads: int, n_kv_heads: int) -> Any:
    """Reshapes on the way in and on the way out."""
    widths = ((wq, n_heads), (wk, n_kv_heads), (wv, n_kv_heads))
    q, k, v = ((x @ w).reshape(n, len(x), w.shape[1] // n) for w, n in widths)
    return attention(q, *cache.append(k, v)).reshape(len(x), wq.shape[1])


def _tiled(x: Any, wq: Any, wk: Any, wv: Any, cache: Any, n_heads: int, n_kv_heads: int) -> Any:
    """Query head h reads KV head h modulo n_kv_heads."""
    q, k, v = _project(x, wq, wk, wv, n_heads, n_kv_heads)
    k, v = cache.append(k, v)
    return merge_heads(attention(q, *(np.tile(a, (n_heads // n_kv_heads, 1, 1)) for a in (k, v))))


def _top_left(x: Any, wq: Any, wk: Any, wv: Any, cache: Any, n_heads: int, n_kv_heads: int) -> Any:
    q, k, v = _project(x, wq, wk, wv, n_heads, n_kv_heads)
    k, v = cache.append(k, v)
    return merge_heads(attention(q, k, v, mask=np.tri(len(x), k.shape[1], dtype=bool)))


def _heads_interleaved(x: Any, wq: Any, wk: Any, wv: Any, cache: Any, n_heads: int, n_kv_heads: int) -> Any:
    """Takes the last axis as (head_dim, heads), where it is (heads, head_dim)."""

    def cut(a: np.ndarray, n: int) -> np.ndarray:
        return a.reshape(len(a), a.shape[1] // n, n).transpose(2, 0, 1)

    q, k, v = cut(x @ wq, n_heads), cut(x @ wk, n_kv_heads), cut(x @ wv, n_kv_heads)
    return merge_heads(attention(q, *cache.append(k, v)))


def _not_causal(x: Any, wq: Any, wk: Any, wv: Any, cache: Any, n_heads: int, n_kv_heads: int) -> Any:
    q, k, v = _project(x, wq, wk, wv, n_heads, n_kv_heads)
    k, v = cache.append(k, v)
    return merge_heads(attention(q, k, v, mask=np.ones((len(x), k.shape[1]), bool)))


def _exchanged(x: Any, wq: Any, wk: Any, wv: Any, cache: Any, n_heads: int, n_kv_heads: int) -> Any:
    q, k, v = _project(x, wq, wk, wv, n_heads, n_kv_heads)
    v, k = cache.append(v, k)
    return merge_heads(attention(q, k, v))


def _repeated_before_caching(x: Any, wq: Any, wk: Any, wv: Any, cache: Any, n_heads: int, n_kv_heads: int) -> Any:
    q, k, v = _project(x, wq, wk, wv, n_heads, n_kv_heads)
    k, v = (np.repeat(a, n_heads // n_kv_heads, axis=0) for a in (k, v))
    return merge_heads(attention(q, *cache.append(k, v)))


def _empty_chunk_raises(x: Any, wq: Any, wk: Any, wv: Any, cache: Any, n_heads: int, n_kv_heads: int) -> Any:
    if len(x) == 0:
        raise ValueError("nothing to do")
    return _step(x, wq, wk, wv, cache, n_heads, n_kv_heads)


def _empty_chunk_returns_x(x: Any, wq: Any, wk: Any, wv: Any, cache: Any, n_heads: int, n_kv_heads: int) -> Any:
    return x if len(x) == 0 else _step(x, wq, wk, wv, cache, n_heads, n_kv_heads)


def _last_row_only(x: Any, wq: Any, wk: Any, wv: Any, cache: Any, n_heads: int, n_kv_heads: int) -> Any:
    return _step(x, wq, wk, wv, cache, n_heads, n_kv_heads)[-1:]


def _query_cached(x: Any, wq: Any, wk: Any, wv: Any, cache: Any, n_heads: int, n_kv_heads: int) -> Any:
    """Keeps the queries too and attends with all of them again, returning rows that nobody asked for."""
    q, k, v = _project(x, wq, wk, wv, n_heads, n_kv_heads)
    cache.q = np.concatenate([getattr(cache, "q", q[:, :0]), q], axis=1)
    return merge_heads(attention(cache.q, *cache.append(k, v)))


STEP = Exercise(
    id="step",
    reference=_step,
    stages=[
        Stage("a prompt goes into an empty cache", [_steps(1), _steps(5)]),
        Stage("a decode step sees all that is cached", [_steps(1, 1), _steps(5, 1)]),
        Stage("uneven chunks, then token by token", [_steps(3, 2), _steps(2, 3, 1, 1)]),
        Stage("an empty chunk gives no rows", [_steps(0), _steps(4, 0, 1)]),
        Stage("each text has its own cache", [Probe("step on one text, then on another with a new cache", _two_texts)]),
        Stage("inputs stay as they are", [Probe("step, then look at x and the weights", _step_inputs_unchanged)]),
        Stage("float32", [_steps(2, 1, dtype=np.float32)]),
    ],
    mistakes=[
        Mistake(
            "cache_not_read",
            "The new rows are appended, and attention then looks at the new ones only: the past is never read.",
            "What does cache.append return, and who uses it?",
            _ignores_cache,
        ),
        Mistake(
            "never_appended",
            "Nothing is ever appended: the cache stays empty, and each chunk is a text of its own.",
            "What is len(cache) after your step has seen 5 tokens?",
            _never_appends,
        ),
        Mistake(
            "recomputed",
            "The answer is right and nothing was saved: every step projects the whole text again, and the cache is "
            "filled without being used.",
            "How many tokens does your code multiply with wk in the step that adds one token to 5?",
            _recomputes,
        ),
        Mistake(
            "keys_recomputed",
            "Keys and values of the whole text are computed again in every step; only the query is new. The cache is "
            "filled without being used.",
            "How many tokens does your code multiply with wk in the step that adds one token to 5?",
            _recomputes_keys,
        ),
        Mistake(
            "whole_text_appended",
            "All tokens so far are appended in every step: the cache holds the early ones again and again.",
            "After 5 tokens and then 1 more, how many rows should the cache hold?",
            _whole_text_appended,
        ),
        Mistake(
            "one_store_for_all",
            "Attention reads a store that your function keeps for itself, not the cache it was handed: every layer and "
            "every text would share it.",
            "When a new text begins with a new cache, what does your function still remember?",
            _own_store,
            fresh=True,
        ),
        Mistake(
            "read_before_append",
            "The cache is read before the new rows are appended: a new token cannot see itself or its chunk.",
            "Should a token's own key be among those its query looks at?",
            _read_before_append,
        ),
        Mistake(
            "heads_cut_by_reshape",
            "(n_new, heads * head_dim) is reshaped straight to (heads, n_new, head_dim): rows of different tokens mix. "
            "A single token hides it.",
            "After your reshape, which token does the second row of head 0 come from?",
            _heads_cut_wrong,
        ),
        Mistake(
            "heads_joined_by_reshape",
            "(heads, n_new, head_dim) is reshaped straight to (n_new, heads * head_dim): the tokens' rows mix. "
            "A single token hides it.",
            "Which axis must come first before the heads of one token can be joined?",
            _heads_joined_wrong,
        ),
        Mistake(
            "heads_reshaped_both_ways",
            "Heads are cut and joined again by plain reshapes, in and out: rows of different tokens mix in between. A "
            "single token hides it.",
            "After your first reshape, which token does the second row of head 0 come from?",
            _heads_reshaped,
        ),
        Mistake(
            "tile_order",
            "Query head h reads KV head h modulo n_kv_heads, tile order: neighbouring query heads share a KV head.",
            "Which KV head does query head 1 read when 6 query heads share 2 KV heads?",
            _tiled,
        ),
        Mistake(
            "top_left_triangle",
            "The mask hangs from the top-left corner: over a cache, a new token sees the beginning of the text and not "
            "itself.",
            "With 6 tokens in all of which 1 is new, at which position does the new one stand?",
            _top_left,
        ),
        Mistake(
            "channels_before_heads",
            "The projected width is cut as (head_dim, heads): a head gets every n-th channel, not a run.",
            "Which channels of x @ wq belong to head 0?",
            _heads_interleaved,
        ),
        Mistake(
            "not_causal",
            "Within a chunk every token sees every other: no mask is used. One token at a time hides it.",
            "In a prompt of 5 tokens, which keys may the first one see?",
            _not_causal,
        ),
        Mistake(
            "keys_and_values_exchanged",
            "Keys are stored as values and values as keys: the answer is right as long as nobody else reads the cache.",
            "In which order does cache.append take its two arrays?",
            _exchanged,
        ),
        Mistake(
            "repeated_before_caching",
            "The KV heads are repeated for the query heads before they are stored: the right answer for three times "
            "the memory, and a cache of n_kv_heads heads refuses it.",
            "How many KV heads does the layer have, and how many does your cache hold?",
            _repeated_before_caching,
        ),
        Mistake(
            "queries_kept",
            "Queries are kept and attended with again: a query is used once, in the step it belongs to.",
            "Which rows of the output does the caller not have yet?",
            _query_cached,
        ),
        Mistake(
            "last_row_only",
            "Only the last row comes back. Every new token has an output; the next layer needs them all.",
            "How many rows does a prompt of 5 tokens hand to the next layer?",
            _last_row_only,
        ),
        Mistake(
            "empty_chunk_raises",
            "A chunk of no tokens raises; it should give an output of no rows.",
            "What shape has the output for x of shape (0, d_model)?",
            _empty_chunk_raises,
        ),
        Mistake(
            "empty_chunk_has_the_wrong_width",
            "A chunk of no tokens comes back as it went in, with the model's width where that of the heads belongs.",
            "What shape has the output for x of shape (0, d_model)?",
            _empty_chunk_returns_x,
        ),
    ],
)


def _counts(n: int, name: str) -> Probe:
    return call(f"{name}({n})", n, key="(without_cache, with_cache)", check_inputs=False)


def _count_stages(name: str) -> list[Stage]:
    return [
        Stage("short runs", [_counts(1, name), _counts(2, name), _counts(8, name)]),
        Stage("long runs", [_counts(100, name), _counts(1024, name), _counts(10**6, name)]),
        Stage("no tokens at all", [_counts(0, name)]),
    ]


PROJECTION_COUNTS = Exercise(
    id="projection_counts",
    reference=lambda n: (n * (n + 1) // 2, n),
    stages=_count_stages("projection_counts"),
    mistakes=[
        Mistake(
            "last_step_left_out",
            "The sum stops one step early, which is the number of redundant projections only: step t sends t tokens "
            "through, and the last step is t = n.",
            "How many tokens go through the projections in the very first step?",
            lambda n: (n * (n - 1) // 2, n),
        ),
        Mistake(
            "n_squared",
            "Every step is counted as if the whole text were there already; step t has only t tokens.",
            "How many tokens are there in the first step of a text that will have 8?",
            lambda n: (n * n, n),
        ),
        Mistake(
            "one_pass",
            "Without a cache one pass is counted. Each new token needs a pass of its own over all tokens so far.",
            "After the first new token is chosen, what has to run again to choose the second?",
            lambda n: (n, n),
        ),
        Mistake(
            "with_cache_one",
            "With a cache one token is counted for the whole run: it is one token a step.",
            "How many steps are there?",
            lambda n: (n * (n + 1) // 2, min(n, 1)),
        ),
        Mistake(
            "exchanged",
            "The two numbers are exchanged: the count without a cache comes first.",
            "Which of the two runs does more work?",
            lambda n: (n, n * (n + 1) // 2),
        ),
        Mistake(
            "three_projections",
            "Queries, keys and values are counted apart. What is counted here is tokens, not products.",
            "How many tokens are sent through in a step with one new token and a cache?",
            lambda n: (3 * n * (n + 1) // 2, 3 * n),
        ),
        Mistake(
            "float_division",
            "The counts are floats: / always gives one, and beyond 2**53 it is no longer exact.",
            "What is the type of 8 * 9 / 2?",
            lambda n: (n * (n + 1) / 2, n),
        ),
    ],
)
SCORE_COUNTS = Exercise(
    id="score_counts",
    reference=lambda n: (n * (n + 1) * (2 * n + 1) // 6, n * (n + 1) // 2),
    stages=_count_stages("score_counts"),
    mistakes=[
        Mistake(
            "linear_without_cache",
            "Without a cache one query a step is counted. Everything runs again, so step t has t queries over t keys.",
            "Without a cache, how many queries are computed in step 3?",
            lambda n: (n * (n + 1) // 2, n * (n + 1) // 2),
        ),
        Mistake(
            "linear_with_cache",
            "With a cache one score a step is counted. The new query is compared with every key so far.",
            "Over how many keys does the query of step 3 attend?",
            lambda n: (n * (n + 1) * (2 * n + 1) // 6, n),
        ),
        Mistake(
            "masked_entries_left_out",
            "Hidden entries are left out: dense scores are a full table, t by t, before the mask hides half of it.",
            "How many entries does the product of 3 queries and 3 keys have?",
            lambda n: (n * (n + 1) * (n + 2) // 6, n * (n + 1) // 2),
        ),
        Mistake(
            "n_cubed",
            "Every step is counted as if the whole text were there already; step t is t by t.",
            "How large is the table of scores in the first step?",
            lambda n: (n**3, n * n),
        ),
        Mistake(
            "one_pass",
            "Without a cache one full table is counted, that of the last step.",
            "How many tables of scores are computed while 8 tokens are generated one at a time?",
            lambda n: (n * n, n * (n + 1) // 2),
        ),
        Mistake(
            "exchanged",
            "The two numbers are exchanged: the count without a cache comes first.",
            "Which of the two runs does more work?",
            lambda n: (n * (n + 1) // 2, n * (n + 1) * (2 * n + 1) // 6),
        ),
        Mistake(
            "projections_counted",
            "These are the projections: scores grow with pairs of tokens, not with tokens.",
            "How many scores does one query over 5 keys give?",
            lambda n: (n * (n + 1) // 2, n),
        ),
        Mistake(
            "float_division",
            "The counts are floats: / always gives one, and beyond 2**53 it is no longer exact.",
            "What is the type of 6 / 6?",
            lambda n: (n * (n + 1) * (2 * n + 1) / 6, n * (n + 1) / 2),
        ),
    ],
)

EXERCISES = [KV_CACHE, STEP, PROJECTION_COUNTS, SCORE_COUNTS]
