"""Ring and sink caches: the rows a window may need, no fewer and no more, and attention equal to a full masked pass."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlab.attention import attention
from kvlab.caches import RingCache, SinkCache, attendable

CHUNKS = st.lists(st.integers(0, 7), min_size=1, max_size=6)
WINDOWS = st.tuples(st.integers(1, 6), st.integers(0, 6)).map(lambda w: (w[0], min(w)))  # window, sinks
TOLERANCE = {np.float64: 1e-12, np.float32: 1e-5}


def make(window: int = 3, n_sinks: int = 0, n_kv_heads: int = 2, head_dim: int = 3) -> RingCache:
    return SinkCache(n_kv_heads, head_dim, n_sinks, window) if n_sinks else RingCache(n_kv_heads, head_dim, window)


def normal(*shape: int, seed: int = 0, dtype: Any = np.float64) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def cut(x: np.ndarray, sizes: list[int]) -> list[np.ndarray]:
    """(heads, tokens, head_dim) in chunks of these sizes along the token axis."""
    return np.split(x, np.cumsum(sizes)[:-1], axis=1)


def may_see(i: int, j: int, window: int, n_sinks: int) -> bool:
    """Whether the query at position i may see the key at position j, said once more and in other words."""
    return j in range(i - window + 1, i + 1) or j in range(min(n_sinks, i + 1))


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@given(sizes=CHUNKS, sees=WINDOWS)
def test_append_returns_what_the_new_queries_may_need_oldest_first(dtype, sizes, sees):
    window, n_sinks = sees
    n = sum(sizes)
    k, v = normal(2, n, 3, dtype=dtype), normal(2, n, 3, seed=1, dtype=dtype)
    cache, seen = make(window, n_sinks), 0
    for k_new, v_new in zip(cut(k, sizes), cut(v, sizes), strict=True):
        k_rows, v_rows, positions = cache.append(k_new, v_new)
        queries = range(seen, max(seen + k_new.shape[1], seen + 1))  # an empty chunk: what the next query may need
        seen += k_new.shape[1]
        needed = [j for j in range(seen) if any(may_see(i, j, window, n_sinks) for i in queries)]
        assert positions.tolist() == needed
        assert k_rows.dtype == v_rows.dtype == dtype
        np.testing.assert_array_equal(k_rows, k[:, needed])
        np.testing.assert_array_equal(v_rows, v[:, needed])
        assert (len(cache), cache.n_rows) == (seen, min(seen, window + n_sinks))


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@given(sizes=CHUNKS, sees=WINDOWS, group=st.integers(1, 3))
def test_attention_over_the_cache_equals_a_full_masked_pass(dtype, sizes, sees, group):
    window, n_sinks = sees
    n = sum(sizes)
    q, k, v = (normal(2 * g, n, 3, seed=s, dtype=dtype) for s, g in enumerate((group, 1, 1)))
    mask = np.array([[may_see(i, j, window, n_sinks) for j in range(n)] for i in range(n)], dtype=bool).reshape(n, n)
    cache = make(window, n_sinks)
    chunks = zip(*(cut(x, sizes) for x in (q, k, v)), strict=True)
    parts = [attention(q_new, *attendable(cache, k_new, v_new)) for q_new, k_new, v_new in chunks]
    np.testing.assert_allclose(np.concatenate(parts, axis=1), attention(q, k, v, mask), rtol=0, atol=TOLERANCE[dtype])


def test_frozen_positions():
    """Written out by hand: a window of 3 with 2 sinks, prompt of 4, then chunks of 1, 1, 5, 0 and 1."""
    cache, rows = make(window=3, n_sinks=2), normal(2, 12, 3)
    sizes = [4, 1, 1, 5, 0, 1]
    answers = [cache.append(part, part)[2].tolist() for part in cut(rows, sizes)]
    assert answers == [
        [0, 1, 2, 3],
        [0, 1, 2, 3, 4],
        [0, 1, 3, 4, 5],
        [0, 1, 4, 5, 6, 7, 8, 9, 10],
        [0, 1, 9, 10],
        [0, 1, 9, 10, 11],
    ]


def test_a_window_of_one_sees_only_itself():
    cache = make(window=1)
    cache.append(normal(2, 4, 3), normal(2, 4, 3))
    k, v, positions = cache.append(normal(2, 2, 3, seed=1), normal(2, 2, 3, seed=2))
    assert positions.tolist() == [4, 5]
    np.testing.assert_array_equal(k, normal(2, 2, 3, seed=1))
    np.testing.assert_array_equal(v, normal(2, 2, 3, seed=2))


@given(sizes=CHUNKS.map(lambda sizes: [1 + n for n in sizes]), window=st.integers(2, 6))
def test_a_ring_answers_as_the_sliding_layer_of_transformers_does(sizes, window):
    """An oracle that shares nothing with ours: it keeps window - 1 rows and returns them with the chunk."""
    torch = pytest.importorskip("torch", reason="the oracle is the sliding cache layer of transformers")
    cache_utils = pytest.importorskip("transformers.cache_utils", reason="the oracle is its sliding cache layer")
    layer, cache = cache_utils.DynamicSlidingWindowLayer(sliding_window=window), make(window)
    k, v = normal(2, sum(sizes), 3), normal(2, sum(sizes), 3, seed=1)
    for k_new, v_new in zip(cut(k, sizes), cut(v, sizes), strict=True):
        theirs = layer.update(torch.from_numpy(k_new)[None], torch.from_numpy(v_new)[None])
        for ours, other in zip(cache.append(k_new, v_new)[:2], theirs, strict=True):
            np.testing.assert_array_equal(ours, other[0].numpy())


@pytest.mark.parametrize("n_sinks", [0, 2])
def test_storage_is_allocated_once_and_is_window_and_sinks(n_sinks):
    cache = make(window=4, n_sinks=n_sinks)
    assert cache.n_bytes == 0
    held = set()
    for n_new in (0, 3, 1, 9, 1):
        rows = normal(2, n_new, 3, dtype=np.float32)
        cache.append(rows, rows)
        held.add((cache.n_bytes, cache._k.ctypes.data, cache._v.ctypes.data))
    assert [n_bytes for n_bytes, _, _ in held] == [2 * 2 * (4 + n_sinks) * 3 * 4]
    cache.reset()
    assert cache.n_bytes == 0


@pytest.mark.parametrize("n_sinks", [0, 2])
def test_inputs_and_answers_are_copies(n_sinks):
    cache = make(window=3, n_sinks=n_sinks)
    k_new, v_new = normal(2, 5, 3), normal(2, 5, 3, seed=1)
    given_k, given_v = k_new.copy(), v_new.copy()
    first = cache.append(k_new, v_new)
    np.testing.assert_array_equal(k_new, given_k)
    np.testing.assert_array_equal(v_new, given_v)
    k_new[:] = v_new[:] = 7
    kept = [a.copy() for a in first]
    second = cache.append(normal(2, 4, 3, seed=2), normal(2, 4, 3, seed=3))
    for a, b in zip(first, kept, strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(second[0][:, n_sinks : n_sinks + 2], given_k[:, 3:])
    np.testing.assert_array_equal(second[1][:, :n_sinks], given_v[:, :n_sinks])
    for a in second:
        a[:] = 9
    nothing = normal(2, 0, 3)
    k, _, positions = cache.append(nothing, nothing)
    np.testing.assert_array_equal(k[:, -2:], normal(2, 4, 3, seed=2)[:, -2:])
    assert positions.tolist() == [*range(n_sinks), 7, 8]


@pytest.mark.parametrize("first, then", [(np.float32, np.float64), (np.float64, np.float32)])
@pytest.mark.parametrize("n_first", [0, 3])
def test_dtype_follows_the_first_append_and_starts_anew_after_a_reset(first, then, n_first):
    cache = make()
    cache.append(normal(2, n_first, 3, dtype=first), normal(2, n_first, 3, dtype=first))
    k, v, _ = cache.append(normal(2, 1, 3, dtype=then), normal(2, 1, 3, dtype=then))
    assert k.dtype == v.dtype == first
    cache.reset()
    assert cache.append(normal(2, 1, 3, dtype=then), normal(2, 1, 3, dtype=then))[0].dtype == then


@pytest.mark.parametrize("n_sinks", [0, 2])
def test_reset_and_rerun(n_sinks):
    cache = make(n_sinks=n_sinks)
    k, v = normal(2, 9, 3), normal(2, 9, 3, seed=1)
    runs = []
    for _ in range(2):
        runs.append([cache.append(*rows) for rows in zip(cut(k, [5, 4]), cut(v, [5, 4]), strict=True)])
        cache.reset()
        assert (len(cache), cache.n_rows) == (0, 0)
        assert cache.append(k[:, :0], v[:, :0])[2].tolist() == []
    for one, two in zip(*runs, strict=True):
        for a, b in zip(one, two, strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_sink_cache_without_sinks_is_a_ring():
    ring, sinks = RingCache(2, 3, 4), SinkCache(2, 3, 0, 4)
    for n_new in (3, 4, 1, 0):
        rows = normal(2, n_new, 3, seed=n_new)
        for a, b in zip(ring.append(rows, rows), sinks.append(rows, rows), strict=True):
            np.testing.assert_array_equal(a, b)
    assert ring.n_bytes == sinks.n_bytes


@pytest.mark.parametrize(
    "build, message",
    [
        (lambda: RingCache(2, 3, 0), "window: expected a whole number of at least 1, got 0"),
        (lambda: RingCache(0, 3, 4), "n_kv_heads: expected a whole number of at least 1, got 0"),
        (lambda: RingCache(2, 2.5, 4), "head_dim: expected a whole number of at least 1, got 2.5"),
        (lambda: SinkCache(2, 3, 1, 0), "window: expected a whole number of at least 1, got 0"),
        (lambda: SinkCache(2, 3, -1, 4), "n_sinks: expected a whole number of at least 0, got -1"),
        (lambda: SinkCache(2, 3, 5, 4), "n_sinks: 5 sinks are more than the window of 4"),
    ],
)
def test_sizes_that_make_no_sense_are_refused(build, message, no_shape_hook):
    with pytest.raises(ValueError, match=message):
        build()


def test_as_many_sinks_as_window_are_allowed():
    cache = make(window=3, n_sinks=3)
    cache.append(normal(2, 8, 3), normal(2, 8, 3))
    assert cache.append(normal(2, 1, 3), normal(2, 1, 3))[2].tolist() == [0, 1, 2, 6, 7, 8]


@pytest.mark.parametrize("n_sinks", [0, 2])
@pytest.mark.parametrize(
    "k_shape, v_shape, message",
    [
        ((3, 1, 3), (2, 1, 3), "k_new: .* got .3, 1, 3.: n_kv_heads is 3"),
        ((2, 1, 3), (2, 1, 4), "v_new: .* got .2, 1, 4.: head_dim is 4"),
        ((2, 1, 3), (2, 2, 3), "v_new: .* got .2, 2, 3.: n_new is 2"),
        ((2, 3), (2, 1, 3), "k_new: .* got .2, 3.: 2 axes"),
    ],
)
def test_wrong_shapes_are_refused_and_nothing_is_stored(n_sinks, k_shape, v_shape, message, no_shape_hook):
    cache = make(n_sinks=n_sinks)
    before = cache.append(normal(2, 4, 3), normal(2, 4, 3, seed=1))
    with pytest.raises(ValueError, match=message):
        cache.append(np.zeros(k_shape), np.zeros(v_shape))
    k, v, positions = cache.append(normal(2, 0, 3), normal(2, 0, 3))
    assert (len(cache), positions.tolist()) == (4, [*range(n_sinks), 2, 3])
    np.testing.assert_array_equal(k[:, -2:], before[0][:, 2:])
    np.testing.assert_array_equal(v[:, -2:], before[1][:, 2:])
