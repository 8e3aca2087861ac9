"""The NumPy caches: whatever the chunks, what comes back is what went in, and attention over it is the full pass's."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlab.attention import attention
from kvlab.caches import Cache, ConcatCache, StaticCache

KINDS = ["concat", "static"]
CHUNKS = st.lists(st.integers(0, 5), min_size=1, max_size=6)
SIZES = st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 6))  # KV heads, query heads a KV head, head_dim
TOLERANCE = {np.float64: 1e-12, np.float32: 1e-5}


def make(kind: str, n_kv_heads: int = 2, max_len: int = 12, head_dim: int = 3, dtype: Any = np.float64) -> Cache:
    if kind == "concat":
        return ConcatCache(n_kv_heads, head_dim)
    return StaticCache(n_kv_heads, max(max_len, 1), head_dim, dtype)


def normal(*shape: int, seed: int = 0, dtype: Any = np.float64) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def cut(x: np.ndarray, sizes: list[int]) -> list[np.ndarray]:
    """(heads, tokens, head_dim) in chunks of these sizes along the token axis."""
    return np.split(x, np.cumsum(sizes)[:-1], axis=1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@given(sizes=CHUNKS, shape=SIZES)
def test_append_returns_all_rows_oldest_first(kind, dtype, sizes, shape):
    n_kv_heads, _, head_dim = shape
    n = sum(sizes)
    k, v = normal(n_kv_heads, n, head_dim, dtype=dtype), normal(n_kv_heads, n, head_dim, seed=1, dtype=dtype)
    cache = make(kind, n_kv_heads, n, head_dim, dtype)
    seen = 0
    for k_new, v_new in zip(cut(k, sizes), cut(v, sizes), strict=True):
        k_all, v_all = cache.append(k_new, v_new)
        seen += k_new.shape[1]
        assert len(cache) == seen
        assert k_all.dtype == v_all.dtype == dtype
        np.testing.assert_array_equal(k_all, k[:, :seen])
        np.testing.assert_array_equal(v_all, v[:, :seen])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@given(sizes=CHUNKS, shape=SIZES)
def test_cached_attention_equals_the_full_pass(kind, dtype, sizes, shape):
    n_kv_heads, group, head_dim = shape
    n = sum(sizes)
    q = normal(n_kv_heads * group, n, head_dim, dtype=dtype)
    k, v = normal(n_kv_heads, n, head_dim, seed=1, dtype=dtype), normal(n_kv_heads, n, head_dim, seed=2, dtype=dtype)
    cache = make(kind, n_kv_heads, n, head_dim, dtype)
    chunks = zip(cut(q, sizes), cut(k, sizes), cut(v, sizes), strict=True)
    cached = np.concatenate([attention(q_new, *cache.append(k_new, v_new)) for q_new, k_new, v_new in chunks], axis=1)
    assert cached.dtype == dtype
    np.testing.assert_allclose(cached, attention(q, k, v), rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("kind", KINDS)
def test_attention_over_a_cache_equals_torch(kind):
    """An oracle that shares nothing with ours, over uneven chunks: torch's attention on the whole sequence."""
    torch = pytest.importorskip("torch", reason="the oracle is torch's scaled_dot_product_attention")
    q, k, v = normal(6, 9, 4), normal(2, 9, 4, seed=1), normal(2, 9, 4, seed=2)
    whole = torch.nn.functional.scaled_dot_product_attention(
        *(torch.from_numpy(a)[None] for a in (q, k, v)), is_causal=True, enable_gqa=True
    )[0].numpy()
    cache = make(kind, 2, 9, 4)
    parts = [
        attention(a, *cache.append(b, c)) for a, b, c in zip(*(cut(x, [4, 0, 3, 1, 1]) for x in (q, k, v)), strict=True)
    ]
    np.testing.assert_allclose(np.concatenate(parts, axis=1), whole, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_zeros_are_rows(kind):
    cache = make(kind)
    cache.append(np.zeros((2, 3, 3)), np.zeros((2, 3, 3)))
    k, _ = cache.append(np.ones((2, 1, 3)), np.ones((2, 1, 3)))
    assert len(cache) == 4
    assert k[0, :, 0].tolist() == [0, 0, 0, 1]


@pytest.mark.parametrize("kind", KINDS)
def test_inputs_are_copied_and_left_alone(kind):
    cache = make(kind)
    k_new, v_new = normal(2, 4, 3), normal(2, 4, 3, seed=1)
    k_given, v_given = k_new.copy(), v_new.copy()
    k, v = cache.append(k_new, v_new)
    np.testing.assert_array_equal(k_new, k_given)
    np.testing.assert_array_equal(v_new, v_given)
    k_new[:], v_new[:] = 7, 8
    np.testing.assert_array_equal(k, k_given)
    np.testing.assert_array_equal(v, v_given)
    k_one, v_one = k_given[:, :1].copy(), v_given[:, :1].copy()
    cache.append(k_one, v_one)
    k_one[:], v_one[:] = 7, 8
    k, v = cache.append(np.zeros((2, 0, 3)), np.zeros((2, 0, 3)))
    np.testing.assert_array_equal(k[:, 4:], k_given[:, :1])
    np.testing.assert_array_equal(v[:, 4:], v_given[:, :1])


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_returned_does_not_change_with_later_appends(kind):
    cache = make(kind)
    returned = []
    for seed, n_new in enumerate([3, 0, 2, 1]):
        pair = cache.append(normal(2, n_new, 3, seed=seed), normal(2, n_new, 3, seed=seed + 9))
        returned.append([(a, a.copy()) for a in pair])
    for kept, copy in (both for pair in returned for both in pair):
        np.testing.assert_array_equal(kept, copy)


def test_what_a_concat_cache_returned_survives_a_reset():
    cache = ConcatCache(2, 3)
    kept, _ = cache.append(normal(2, 3, 3), normal(2, 3, 3))
    copy = kept.copy()
    cache.reset()
    cache.append(normal(2, 3, 3, seed=5), normal(2, 3, 3, seed=5))
    np.testing.assert_array_equal(kept, copy)


@pytest.mark.parametrize("kind", KINDS)
def test_returned_arrays_cannot_be_written(kind):
    cache = make(kind)
    for n_new in (2, 1):
        for returned in cache.append(normal(2, n_new, 3), normal(2, n_new, 3)):
            with pytest.raises(ValueError, match="read-only"):
                returned[:] = 0


@pytest.mark.parametrize("kind", KINDS)
def test_reset_and_rerun(kind):
    cache = make(kind)
    first = [a.copy() for a in cache.append(normal(2, 5, 3), normal(2, 5, 3, seed=1))]
    cache.reset()
    assert len(cache) == 0
    empty, _ = cache.append(np.zeros((2, 0, 3)), np.zeros((2, 0, 3)))
    assert empty.shape == (2, 0, 3)
    short, _ = cache.append(normal(2, 2, 3, seed=3), normal(2, 2, 3, seed=4))
    np.testing.assert_array_equal(short, normal(2, 2, 3, seed=3))
    cache.reset()
    again = cache.append(normal(2, 5, 3), normal(2, 5, 3, seed=1))
    for a, b in zip(first, again, strict=True):
        np.testing.assert_array_equal(a, b)


@given(sizes=CHUNKS)
def test_static_cache_fills_to_capacity_and_refuses_one_more(sizes):
    n = max(sum(sizes), 1)
    cache = StaticCache(2, n, 3)
    k, v = normal(2, n, 3), normal(2, n, 3, seed=1)
    for part in np.split(np.arange(n), np.cumsum(sizes)[:-1]):
        cache.append(k[:, part], v[:, part])
    assert len(cache) == n
    for n_more in (1, 3):
        with pytest.raises(ValueError, match=rf"{n} of {n} slots are filled, {n_more} more do not fit"):
            cache.append(np.ones((2, n_more, 3)), np.ones((2, n_more, 3)))
    kept_k, kept_v = cache.append(np.zeros((2, 0, 3)), np.zeros((2, 0, 3)))
    np.testing.assert_array_equal(kept_k, k)
    np.testing.assert_array_equal(kept_v, v)


def test_a_chunk_that_would_overflow_writes_none_of_its_rows():
    cache = StaticCache(2, 4, 3)
    cache.append(np.ones((2, 3, 3)), np.ones((2, 3, 3)))
    with pytest.raises(ValueError, match="3 of 4 slots are filled, 2 more do not fit"):
        cache.append(np.full((2, 2, 3), 5.0), np.full((2, 2, 3), 5.0))
    k, v = cache.append(np.full((2, 1, 3), 2.0), np.full((2, 1, 3), 2.0))
    assert k[0, :, 0].tolist() == v[0, :, 0].tolist() == [1, 1, 1, 2]


@pytest.mark.parametrize("first, then", [(np.float32, np.float64), (np.float64, np.float32)])
@pytest.mark.parametrize("n_first", [0, 3])
def test_concat_cache_dtype_follows_the_first_append(first, then, n_first):
    cache = ConcatCache(2, 3)
    cache.append(normal(2, n_first, 3, dtype=first), normal(2, n_first, 3, dtype=first))
    k, v = cache.append(normal(2, 1, 3, dtype=then), normal(2, 1, 3, dtype=then))
    assert k.dtype == v.dtype == first
    cache.reset()
    k, _ = cache.append(normal(2, 1, 3, dtype=then), normal(2, 1, 3, dtype=then))
    assert k.dtype == then


def test_static_cache_refuses_another_dtype_and_stores_nothing():
    cache = StaticCache(2, 4, 3, np.float32)
    rows = np.ones((2, 1, 3), np.float32)
    for k_new, v_new in ((rows.astype(float), rows), (rows, rows.astype(float))):
        with pytest.raises(ValueError, match="cache holds float32, got float"):
            cache.append(k_new, v_new)
    assert len(cache) == 0
    assert StaticCache(2, 4, 3).append(np.ones((2, 1, 3)), np.ones((2, 1, 3)))[0].dtype == np.float64


def test_n_bytes():
    """2 (keys and values) x KV heads x rows x head_dim x bytes: filled rows for concat, slots for static."""
    concat, static = ConcatCache(2, 3), StaticCache(2, 8, 3, np.float32)
    assert (concat.n_bytes, static.n_bytes) == (0, 2 * 2 * 8 * 3 * 4)
    rows = np.ones((2, 5, 3), np.float32)
    for cache in (concat, static):
        cache.append(rows, rows)
    assert (concat.n_bytes, static.n_bytes) == (2 * 2 * 5 * 3 * 4, 2 * 2 * 8 * 3 * 4)
    for cache in (concat, static):
        cache.reset()
    assert (concat.n_bytes, static.n_bytes) == (0, 2 * 2 * 8 * 3 * 4)


def test_both_are_caches():
    assert isinstance(ConcatCache(1, 1), Cache)
    assert isinstance(StaticCache(1, 1, 1), Cache)
    assert not isinstance([], Cache)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "k_shape, v_shape, message",
    [
        ((3, 1, 3), (2, 1, 3), "k_new: .* got .3, 1, 3.: n_kv_heads is 3"),
        ((2, 1, 3), (3, 1, 3), "v_new: .* got .3, 1, 3.: n_kv_heads is 3"),
        ((2, 1, 4), (2, 1, 3), "k_new: .* got .2, 1, 4.: head_dim is 4"),
        ((2, 1, 3), (2, 1, 4), "v_new: .* got .2, 1, 4.: head_dim is 4"),
        ((2, 1, 3), (2, 2, 3), "v_new: .* got .2, 2, 3.: n_new is 2"),
        ((2, 3), (2, 1, 3), "k_new: .* got .2, 3.: 2 axes"),
    ],
)
def test_wrong_shapes_are_refused_and_nothing_is_stored(kind, k_shape, v_shape, message, no_shape_hook):
    cache = make(kind)
    cache.append(np.ones((2, 2, 3)), np.ones((2, 2, 3)))
    with pytest.raises(ValueError, match=message):
        cache.append(np.zeros(k_shape), np.zeros(v_shape))
    k, v = cache.append(np.ones((2, 0, 3)), np.ones((2, 0, 3)))
    assert k.shape == v.shape == (2, 2, 3)


@pytest.mark.parametrize("sizes", [(0, 4, 3), (2, 0, 3), (2, 4, 0), (2.5, 4, 3)])
def test_a_cache_needs_positive_sizes(sizes, no_shape_hook):
    with pytest.raises(ValueError, match="expected a whole number of at least 1, got"):
        StaticCache(*sizes)
    if sizes[1]:
        with pytest.raises(ValueError, match="expected a whole number of at least 1, got"):
            ConcatCache(sizes[0], sizes[2])
