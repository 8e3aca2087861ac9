"""The contract of every cache of the course, as one function: `keep_contract(form, case)` runs a case and asserts.

A form is a kind of cache, NumPy or PyTorch, behind an adapter; a case is sizes and a list of operations. The oracle
keeps everything that was ever appended, and knows of each form only what its documentation promises.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from kvlab import caches, torch_caches
from kvlab.attention import attention, offset_mask
from kvlab.masks import window_mask

TOLERANCE = {"float64": 1e-12, "float32": 1e-5}
MAX_LIVE = 4


@dataclass(frozen=True)
class Case:
    """Sizes of every kind of cache, and what is done with it: (operation, which of the live caches, tokens)."""

    n_kv_heads: int
    group: int  # query heads a KV head
    head_dim: int
    dtype: str
    capacity: int
    window: int
    n_sinks: int
    block_size: int
    n_blocks: int
    n_bits: int
    residual: int
    flat: bool  # every row the same: a range of nothing to quantize, keys that say nothing about their order
    seed: int
    operations: tuple[tuple[str, int, int], ...]


OPERATIONS = st.tuples(
    st.sampled_from(["append"] * 6 + ["fork", "fork", "reset", "fill"]), st.integers(0, MAX_LIVE - 1), st.integers(0, 7)
)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    window = draw(st.integers(1, 5))
    return Case(
        n_kv_heads=draw(st.integers(1, 3)),
        group=draw(st.integers(1, 3)),
        head_dim=draw(st.integers(1, 6)),
        dtype=draw(st.sampled_from(["float64", "float32"])),
        capacity=draw(st.integers(1, 16)),
        window=window,
        n_sinks=draw(st.integers(0, window)),
        block_size=draw(st.integers(1, 4)),
        n_blocks=draw(st.integers(1, 12)),
        n_bits=draw(st.integers(2, 8)),
        residual=draw(st.integers(1, 5)),
        flat=draw(st.integers(0, 7)) == 7,
        seed=draw(st.integers(0, 2**16)),
        operations=tuple(draw(st.lists(OPERATIONS, min_size=1, max_size=9))),
    )


# Adapters


class NumpyCache:
    """One NumPy cache; the contract's arrays carry a batch axis of 1."""

    batch = 1

    def __init__(self, cache: Any) -> None:
        self.cache = cache

    def append(self, k: np.ndarray, v: np.ndarray) -> tuple[list[np.ndarray], np.ndarray | None, list[Any]]:
        """Rows (k, v) with a batch axis, the mask, and the arrays that were handed out."""
        answer = caches.attendable(self.cache, k[0], v[0])
        return [answer.k[None], answer.v[None]], answer.mask, [answer.k, answer.v]


class TorchCache:
    """One PyTorch cache: the batch goes in whole."""

    def __init__(self, cache: Any, batch: int) -> None:
        self.cache = cache
        self.batch = batch

    def append(self, k: np.ndarray, v: np.ndarray) -> tuple[list[np.ndarray], np.ndarray | None, list[Any]]:
        # from_numpy shares memory: what the cache does to its inputs shows in k and v, and the reverse.
        answer = torch_caches.attendable(self.cache, torch.from_numpy(k), torch.from_numpy(v))
        mask = None if answer.mask is None else answer.mask.numpy()
        return [answer.k.numpy(), answer.v.numpy()], mask, [answer.k.numpy(), answer.v.numpy()]


@dataclass(frozen=True)
class Form:
    """A kind of cache and what its documentation promises.

    build: makes one from a case; `cls` puts another class in its place, which is how faulty ones are tried.
    keeps: "all" the rows, those of a "window", or all "quantized".
    results_change: what an append returned may be overwritten: "never", or after a "reset", or at the "next" append.
    """

    name: str
    build: Callable[[Case, Any], Any]
    default: Any
    keeps: str = "all"
    has_sinks: bool = False
    refuses: type[Exception] | None = None  # at capacity
    results_change: str = "never"
    written_results_reach: bool = False  # a caller who writes into a result writes into the cache
    forks: bool = False
    allocated: str = "on demand"  # or "once", when the cache is made, and kept at a reset


def _numpy(make: Callable[[Case, Any], Any]) -> Callable[[Case, Any], Any]:
    return lambda case, cls: NumpyCache(make(case, cls))


def _torch(make: Callable[[Case, Any], Any], batch: int = 2) -> Callable[[Case, Any], Any]:
    return lambda case, cls: TorchCache(make(case, cls), batch)


def _pool(case: Case, module: Any, dtype: Any) -> Any:
    return module.BlockPool(case.n_blocks, case.block_size, case.n_kv_heads, case.head_dim, dtype)


def _torch_dtype(case: Case) -> torch.dtype:
    return getattr(torch, case.dtype)


FORMS = [
    Form("numpy concat", _numpy(lambda c, cls: cls(c.n_kv_heads, c.head_dim)), caches.ConcatCache),
    Form(
        "numpy static",
        _numpy(lambda c, cls: cls(c.n_kv_heads, c.capacity, c.head_dim, np.dtype(c.dtype))),
        caches.StaticCache,
        refuses=ValueError,
        results_change="reset",
        allocated="once",
    ),
    Form(
        "numpy ring",
        _numpy(lambda c, cls: cls(c.n_kv_heads, c.head_dim, c.window)),
        caches.RingCache,
        keeps="window",
    ),
    Form(
        "numpy sink",
        _numpy(lambda c, cls: cls(c.n_kv_heads, c.head_dim, c.n_sinks, c.window)),
        caches.SinkCache,
        keeps="window",
        has_sinks=True,
    ),
    Form(
        "numpy paged",
        _numpy(lambda c, cls: cls(_pool(c, caches, np.dtype(c.dtype)))),
        caches.PagedCache,
        refuses=MemoryError,
        forks=True,
    ),
    Form(
        "numpy quantized",
        _numpy(lambda c, cls: cls(c.n_kv_heads, c.head_dim, c.n_bits, c.residual)),
        caches.QuantizedCache,
        keeps="quantized",
    ),
    Form(
        "torch concat",
        _torch(lambda c, cls: cls(2, c.n_kv_heads, c.head_dim)),
        torch_caches.ConcatCache,
        written_results_reach=True,
    ),
    Form(
        "torch static",
        _torch(lambda c, cls: cls(2, c.n_kv_heads, c.capacity, c.head_dim, _torch_dtype(c))),
        torch_caches.StaticCache,
        refuses=ValueError,
        results_change="next",
        written_results_reach=True,
        allocated="once",
    ),
    Form(
        "torch ring",
        _torch(lambda c, cls: cls(2, c.n_kv_heads, c.head_dim, c.window, _torch_dtype(c))),
        torch_caches.RingCache,
        keeps="window",
        allocated="once",
    ),
    Form(
        "torch sink",
        _torch(lambda c, cls: cls(2, c.n_kv_heads, c.head_dim, c.n_sinks, c.window, _torch_dtype(c))),
        torch_caches.SinkCache,
        keeps="window",
        has_sinks=True,
        allocated="once",
    ),
    Form(
        "torch paged",
        _torch(lambda c, cls: cls(_pool(c, torch_caches, _torch_dtype(c))), batch=1),
        torch_caches.PagedCache,
        refuses=MemoryError,
        forks=True,
    ),
    Form(
        "torch quantized",
        _torch(lambda c, cls: cls(2, c.n_kv_heads, c.head_dim, c.n_bits, c.residual)),
        torch_caches.QuantizedCache,
        keeps="quantized",
    ),
]
BY_NAME = {form.name: form for form in FORMS}


# The oracle


@dataclass
class Live:
    """A cache in use, beside everything its sequence has seen."""

    subject: Any
    q: np.ndarray  # (batch, n_heads, n_total, head_dim)
    k: np.ndarray  # (batch, n_kv_heads, n_total, head_dim)
    v: np.ndarray
    out: np.ndarray  # attention over what the cache returned, for every token so far
    handed_out: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)  # with a copy of what it showed

    @property
    def n_total(self) -> int:
        return self.k.shape[2]


def keep_contract(form: Form, case: Case, cls: Any = None) -> None:
    """Run the case on a cache of this form; AssertionError where it breaks the contract."""
    rng = np.random.default_rng(case.seed)
    live = [_start(case, form.build(case, cls or form.default))]
    _expect_no_rows_held(form, live[0])
    for operation, which, n in case.operations:
        one = live[which % len(live)]
        if operation == "append":
            _append(form, case, live, one, n, rng)
        elif operation == "fill":
            _fill(form, case, live, one, rng)
        elif operation == "reset":
            _compare_with_full_pass(form, case, one)
            _reset(form, case, live, one)
        elif form.forks and len(live) < MAX_LIVE:
            _fork(form, case, live, one)
        for other in live:
            if other is not one:
                _append(form, case, live, other, 0, rng)  # what is done to one cache must not show in another
    for one in live:
        _compare_with_full_pass(form, case, one)
        _write_into_results(form, case, live, one, rng)


def _start(case: Case, subject: Any) -> Live:
    heads, d, b = case.n_kv_heads, case.head_dim, subject.batch
    nothing = np.zeros((b, heads, 0, d), case.dtype)
    many = np.zeros((b, heads * case.group, 0, d), case.dtype)
    return Live(subject, many, nothing, nothing, many)


def _rows(case: Case, batch: int, n_heads: int, n: int, rng: np.random.Generator) -> np.ndarray:
    x = rng.standard_normal((batch, n_heads, n, case.head_dim))
    if case.flat:
        x[:] = 1.5
    x[..., 0] *= 4  # a channel that stands out, as in the keys of real models
    return x.astype(case.dtype)


def _append(form: Form, case: Case, live: list[Live], one: Live, n: int, rng: np.random.Generator) -> None:
    batch = one.subject.batch
    q = _rows(case, batch, case.n_kv_heads * case.group, n, rng)
    k, v = (_rows(case, batch, case.n_kv_heads, n, rng) for _ in range(2))
    given = k.copy(), v.copy()
    if n > _room(form, case, one):
        _refused(form, case, live, one, k, v)
        return
    before = one.n_total
    try:
        rows, mask, handed_out = one.subject.append(k, v)
    except (ValueError, MemoryError) as error:
        raise AssertionError(f"{n} tokens were refused: {error}") from error
    assert np.array_equal(k, given[0]) and np.array_equal(v, given[1]), "an input was changed"
    one.q, one.k, one.v = (np.concatenate(x, axis=2) for x in ((one.q, q), (one.k, given[0]), (one.v, given[1])))
    k[:], v[:] = 77, 88  # the caller goes on using its arrays
    assert len(one.subject.cache) == one.n_total, "len is not the tokens seen"
    _expect_results_kept(form, one)
    _expect_rows(form, case, one, before, rows, mask)
    out = [attention(q[b], rows[0][b], rows[1][b], mask) for b in range(batch)]
    one.out = np.concatenate([one.out, np.stack(out)], axis=2)
    one.handed_out += [(array, array.copy()) for array in handed_out]
    _expect_storage(form, case, live, one)


def _expect_rows(
    form: Form, case: Case, one: Live, before: int, rows: list[np.ndarray], mask: np.ndarray | None
) -> None:
    """The rows that came back, and who may see which, against everything that was appended."""
    positions = np.arange(one.n_total)
    if form.keeps == "window":
        first = max(before - case.window + 1, 0)
        positions = positions[(positions >= first) | (positions < _n_sinks(form, case))]
        right = _full_mask(form, case, one.n_total)[before:, positions]
        assert mask is not None and np.array_equal(mask, right), "a query sees other tokens than its window"
    else:
        assert mask is None, "all rows are stored: no mask but the causal one"
    for name, got, seen in zip(("keys", "values"), rows, (one.k, one.v), strict=True):
        wanted = seen[:, :, positions]
        assert got.dtype == wanted.dtype, f"{name}: {got.dtype} for {wanted.dtype}"
        assert got.shape == wanted.shape, f"{name}: shape {got.shape} for {wanted.shape}"
        bound = _bound(case, wanted, axis=2 if name == "keys" else 3) if form.keeps == "quantized" else 0.0
        assert (np.abs(got - wanted) <= bound).all(), f"{name}: off by {np.abs(got - wanted).max()}"


def _bound(case: Case, x: np.ndarray, axis: int) -> np.ndarray:
    """What a quantized cache states: half a step of the group's scale, and 0 for the rows that are not yet a group.

    To it come the roundings of the dtype, here 4 units in the last place of the group's largest number.
    """
    bound = np.zeros(x.shape)
    for at in range(0, x.shape[2] - case.residual + 1, case.residual):
        rows = x[:, :, at : at + case.residual].astype(np.float64)
        step = (rows.max(axis, keepdims=True) - rows.min(axis, keepdims=True)) / (2**case.n_bits - 1)
        rounding = 4 * np.finfo(x.dtype).eps * np.abs(rows).max(axis, keepdims=True)
        bound[:, :, at : at + case.residual] = step / 2 + np.where(step > 0, rounding, 0)
    return bound


def _expect_storage(form: Form, case: Case, live: list[Live], one: Live) -> None:
    """Bytes held against what the form says; blocks of a pool against the tables of all who use it."""
    cache, size = one.subject.cache, np.dtype(case.dtype).itemsize
    row_bytes = 2 * one.subject.batch * case.n_kv_heads * case.head_dim * size
    n, n_slots = one.n_total, case.window + _n_sinks(form, case)
    if form.keeps == "window":
        assert cache.n_rows == min(n, n_slots), "rows held are not what is said"
        assert cache.n_bytes == n_slots * row_bytes, "more or fewer slots than is said"
    elif form.keeps == "quantized":
        heads, n_groups, rest = one.subject.batch * case.n_kv_heads, n // case.residual, n % case.residual
        codes = 2 * case.n_bits * -(-case.residual * case.head_dim // 8)  # whole bytes a head and bit
        scales = 2 * (case.head_dim + case.residual) * size  # one with its zero a channel of keys, a token of values
        assert cache.n_bytes == heads * n_groups * (codes + scales) + rest * row_bytes, "bytes left out"
    elif form.forks:
        _expect_blocks(case, live)
        assert cache.n_bytes == -(-n // case.block_size) * case.block_size * row_bytes, "blocks too many or too few"
    elif form.refuses:
        assert cache.n_bytes == case.capacity * row_bytes, "storage was not allocated once"
    else:
        assert cache.n_bytes == n * row_bytes, "bytes are not those of the rows"


def _expect_no_rows_held(form: Form, one: Live) -> None:
    """An empty cache holds the storage that it allocates once, and nothing else."""
    assert (one.subject.cache.n_bytes > 0) == (form.allocated == "once"), "bytes held by an empty cache"


def _expect_blocks(case: Case, live: list[Live]) -> None:
    pool = live[0].subject.cache.pool
    held = [block for one in live for block in one.subject.cache.block_table]
    for block in set(held):
        assert _holders(pool, block) == held.count(block), f"block {block} has {held.count(block)} holders"
    assert pool.n_free == case.n_blocks - len(set(held)), "a block was lost, or is free and in use"


def _holders(pool: Any, block: int) -> int:
    try:
        return pool.count(block)
    except ValueError:  # not in use
        return 0


def _room(form: Form, case: Case, one: Live) -> float:
    """Tokens that still fit."""
    if form.refuses is None:
        return float("inf")
    if not form.forks:
        return case.capacity - one.n_total
    cache, size = one.subject.cache, case.block_size
    used = one.n_total % size
    shared = used > 0 and _holders(cache.pool, cache.block_table[-1]) > 1
    if shared and cache.pool.n_free == 0:
        return 0
    return (cache.pool.n_free - shared) * size + (size - used if used else 0)


def _refused(form: Form, case: Case, live: list[Live], one: Live, k: np.ndarray, v: np.ndarray) -> None:
    """One line, and nothing has changed: the caches all give what they gave."""
    try:
        one.subject.append(k, v)
    except form.refuses as error:  # type: ignore[misc]
        assert "\n" not in str(error) and str(error), "a message of one line"
    else:
        raise AssertionError(f"{k.shape[2]} tokens were taken with room for {_room(form, case, one)}")
    rng = np.random.default_rng(0)
    for other in live:
        _append(form, case, live, other, 0, rng)


def _fill(form: Form, case: Case, live: list[Live], one: Live, rng: np.random.Generator) -> None:
    """To capacity in uneven chunks, then one past it, and three."""
    room = _room(form, case, one)
    if room == float("inf"):
        return
    for n in (int(room) // 3, int(room) - int(room) // 3):
        _append(form, case, live, one, n, rng)
    assert _room(form, case, one) == 0
    for n in (1, 3):
        _append(form, case, live, one, n, rng)


def _reset(form: Form, case: Case, live: list[Live], one: Live) -> None:
    one.subject.cache.reset()
    _expect_results_kept(form, one, after_reset=True)
    kept = [] if form.results_change == "reset" else one.handed_out
    fresh = _start(case, one.subject)
    one.q, one.k, one.v, one.out, one.handed_out = fresh.q, fresh.k, fresh.v, fresh.out, kept
    assert len(one.subject.cache) == 0, "a reset cache still counts tokens"
    _expect_no_rows_held(form, one)
    _append(form, case, live, one, 0, np.random.default_rng(0))


def _fork(form: Form, case: Case, live: list[Live], one: Live) -> None:
    before = one.subject.cache.pool.n_free
    subject = type(one.subject).__new__(type(one.subject))
    subject.__dict__ |= one.subject.__dict__ | {"cache": one.subject.cache.fork()}
    live.append(Live(subject, one.q, one.k, one.v, one.out))
    assert one.subject.cache.pool.n_free == before, "a fork took blocks"
    _append(form, case, live, live[-1], 0, np.random.default_rng(0))


def _expect_results_kept(form: Form, one: Live, after_reset: bool = False) -> None:
    if form.results_change == "next" or (after_reset and form.results_change == "reset"):
        return
    for array, copy in one.handed_out:
        assert np.array_equal(array, copy), "a result changed after it was handed out"


def _write_into_results(form: Form, case: Case, live: list[Live], one: Live, rng: np.random.Generator) -> None:
    """A caller may write into its own copies; the cache must not see it."""
    if form.written_results_reach:
        return
    for array, _ in one.handed_out:
        if array.flags.writeable:
            array[:] = 99
    one.handed_out = []
    _append(form, case, live, one, 0, rng)


def _compare_with_full_pass(form: Form, case: Case, one: Live) -> None:
    """Attention step by step over the cache against one pass over the whole sequence, mask and all."""
    if form.keeps == "quantized" and one.n_total >= case.residual:
        return  # approximate from the first group on: _expect_rows holds it to its bound
    mask = _full_mask(form, case, one.n_total)
    for b in range(one.subject.batch):
        full = attention(one.q[b], one.k[b], one.v[b], mask)
        assert np.allclose(one.out[b], full, rtol=0, atol=TOLERANCE[case.dtype]), "attention is not the full pass's"


def _n_sinks(form: Form, case: Case) -> int:
    return case.n_sinks if form.has_sinks else 0


def _full_mask(form: Form, case: Case, n: int) -> np.ndarray:
    """Who may see whom in the whole sequence, by the masks of `kvlab.masks` alone."""
    if form.keeps != "window":
        return offset_mask(n, n)
    sinks = np.arange(n)[None, :] < _n_sinks(form, case)
    return window_mask(n, n, case.window) | (offset_mask(n, n) & sinks)
