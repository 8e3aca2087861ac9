"""The paged cache: whatever is appended, forked, freed or shared, each sequence reads its own rows."""

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlab.attention import attention
from kvlab.caches import BlockPool, Cache, PagedCache, PrefixIndex, block_keys
from kvlab.decoder import TinyDecoder
from kvlab.widgets.block_replay import replay

IDS = st.lists(st.integers(0, 2), max_size=12)


def rows(n: int, seed: int = 0, n_kv_heads: int = 2, head_dim: int = 3) -> tuple[np.ndarray, np.ndarray]:
    k, v = np.random.default_rng(seed).standard_normal((2, n_kv_heads, n, head_dim))
    return k, v


def pool_of(n_blocks: int, block_size: int = 4, **more: Any) -> BlockPool:
    return BlockPool(n_blocks, block_size, 2, 3, **more)


def state(pool: BlockPool, *caches: PagedCache) -> Any:
    """Everything that an operation could have changed."""
    counts = [pool.count(b) if b not in pool._free else 0 for b in range(pool.n_blocks)]
    tables = [(list(c.block_table), len(c)) for c in caches]
    return pool.k.tobytes(), pool.v.tobytes(), counts, list(pool._free), tables


# The pool


def test_allocate_hands_out_each_block_once_until_none_is_left():
    pool = pool_of(3)
    assert sorted(pool.allocate() for _ in range(3)) == [0, 1, 2]
    assert [pool.count(b) for b in range(3)] == [1, 1, 1] and pool.n_free == 0
    with pytest.raises(MemoryError, match="all 3 blocks are in use"):
        pool.allocate()
    pool.release(1)
    assert pool.n_free == 1 and pool.allocate() == 1


def test_a_block_is_free_at_its_last_release():
    pool = pool_of(2)
    block = pool.allocate()
    pool.retain(block)
    pool.retain(block)
    for left in (2, 1):
        pool.release(block)
        assert (pool.count(block), pool.n_free) == (left, 1)
    pool.release(block)
    assert pool.n_free == 2


@pytest.mark.parametrize("what", ["retain", "release", "count"])
@pytest.mark.parametrize(
    ("block", "message"),
    [
        (1, "block 1 is not in use"),
        (2, "has blocks 0 to 1, got 2"),
        (-1, "at least 0, got -1"),
        (0.5, "got 0.5"),
        (np.array([0]), r"at least 0, got array\(\[0\]\)"),
    ],
)
def test_a_block_not_in_use_is_refused(what, block, message, no_shape_hook):
    pool = pool_of(2)
    pool.allocate()
    before = state(pool)
    with pytest.raises(ValueError, match=message):
        getattr(pool, what)(block)
    assert state(pool) == before


def test_releasing_twice_is_refused():
    pool = pool_of(2)
    block = pool.allocate()
    pool.release(block)
    with pytest.raises(ValueError, match=f"block {block} is not in use"):
        pool.release(block)
    assert pool.n_free == 2


def test_the_pools_arrays_and_bytes():
    pool = BlockPool(5, 4, 2, 3, dtype=np.float32)
    assert pool.k.shape == pool.v.shape == (5, 2, 4, 3) and pool.k.dtype == pool.v.dtype == np.float32
    assert (pool.n_bytes, pool.block_bytes) == (2 * 5 * 2 * 4 * 3 * 4, 2 * 2 * 4 * 3 * 4)


@pytest.mark.parametrize("sizes", [(0, 4, 2, 3), (5, 0, 2, 3), (5, 4, 0, 3), (5, 4, 2, 0), (5, 1.5, 2, 3)])
def test_a_pool_needs_positive_sizes(sizes, no_shape_hook):
    with pytest.raises(ValueError, match="expected a whole number of at least 1"):
        BlockPool(*sizes)


# One sequence


def test_tables_and_slots_by_hand():
    """5 tokens in blocks of 4: token 4 is alone in the second block."""
    pool = pool_of(4)
    cache = PagedCache(pool)
    k, v = rows(5)
    assert cache.append(k, v) is None
    assert (cache.block_table, len(cache), pool.n_free) == ([0, 1], 5, 2)
    np.testing.assert_array_equal(pool.k[0], k[:, :4])
    np.testing.assert_array_equal(pool.k[1, :, 0], k[:, 4])
    np.testing.assert_array_equal(pool.v[1, :, 0], v[:, 4])
    assert not pool.k[1, :, 1:].any() and not pool.k[2:].any()


@pytest.mark.parametrize("n", [0, 1, 3, 4, 5, 8, 9])
def test_a_block_is_taken_when_the_first_token_needs_it(n):
    """One token at a time or all at once: as many blocks as the tokens fill, rounded up."""
    for cuts in ([n], [1] * n, [0, n, 0]):
        pool = pool_of(4)
        cache = PagedCache(pool)
        for part in cuts:
            cache.append(*rows(part))
        assert (len(cache), len(cache.block_table), pool.n_free) == (n, -(-n // 4), 4 - -(-n // 4))


def test_blocks_lie_anywhere_and_rows_come_back_in_order():
    pool = pool_of(6)
    caches, given_rows = [PagedCache(pool) for _ in range(2)], [rows(9, seed) for seed in range(2)]
    for part in np.split(np.arange(9), [3, 4, 8]):
        for cache, (k, v) in zip(caches, given_rows, strict=True):
            cache.append(k[:, part], v[:, part])
    assert caches[0].block_table == [0, 2, 4]  # the other sequence took those between
    for cache, expected in zip(caches, given_rows, strict=True):
        for got, want in zip(cache.gather(), expected, strict=True):
            np.testing.assert_array_equal(got, want)


def test_what_is_gathered_is_a_copy():
    cache = PagedCache(pool_of(2))
    k, v = rows(3)
    cache.append(k, v)
    kept, _ = cache.gather()
    kept[:] = 7
    k[:] = 8
    np.testing.assert_array_equal(cache.gather()[0], rows(3)[0])


def test_attention_over_gathered_rows_equals_torch():
    torch = pytest.importorskip("torch", reason="the oracle is torch's scaled_dot_product_attention")
    q = np.random.default_rng(2).standard_normal((6, 9, 3))
    k, v = rows(9)
    whole = torch.nn.functional.scaled_dot_product_attention(
        *(torch.from_numpy(a)[None] for a in (q, k, v)), is_causal=True, enable_gqa=True
    )[0].numpy()
    cache, parts = PagedCache(pool_of(3)), []
    for part in np.split(np.arange(9), [4, 4, 7, 8]):
        cache.append(k[:, part], v[:, part])
        parts.append(attention(q[:, part], *cache.gather()))
    np.testing.assert_allclose(np.concatenate(parts, axis=1), whole, rtol=0, atol=1e-12)


def test_an_append_needs_no_more_memory_over_a_long_sequence():
    """No gather, no copy of the table: counted by the allocator, since times prove nothing."""
    peaks = []
    for n in (1_000, 32_000):
        cache = PagedCache(BlockPool(2_100, 16, 2, 4))
        cache.append(*rows(n, head_dim=4))
        one = rows(1, head_dim=4)
        tracemalloc.start()
        for _ in range(20):
            cache.append(*one)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] <= peaks[0] + 4_096  # a list of blocks may grow; 32,000 rows are two megabytes


def test_free_and_reset_give_everything_back_and_begin_anew():
    pool = pool_of(3)
    cache = PagedCache(pool)
    for end in (cache.free, cache.reset):
        cache.append(*rows(9))
        end()
        assert (cache.block_table, len(cache), cache.n_bytes, pool.n_free) == ([], 0, 0, 3)
        end()  # nothing is held: nothing to do
        assert pool.n_free == 3
        assert cache.gather()[0].shape == (2, 0, 3)
    cache.append(*rows(5, seed=1))
    np.testing.assert_array_equal(cache.gather()[1], rows(5, seed=1)[1])


def test_it_is_a_cache_of_the_course():
    cache = PagedCache(pool_of(3))
    assert isinstance(cache, Cache)
    cache.append(*rows(5))
    assert cache.n_bytes == 2 * 2 * 2 * 4 * 3 * 8  # k and v, 2 blocks, heads, slots, head_dim, bytes


# Forks


def test_a_fork_shares_and_the_first_writer_copies_one_block():
    pool = pool_of(8)
    one = PagedCache(pool)
    one.append(*rows(10))
    two = one.fork()
    assert two.block_table == one.block_table == [0, 1, 2] and two.block_table is not one.block_table
    assert [pool.count(b) for b in one.block_table] == [2, 2, 2] and pool.n_free == 5
    two.append(*rows(1, seed=1))
    assert (one.block_table, two.block_table, pool.n_free) == ([0, 1, 2], [0, 1, 3], 4)
    assert [pool.count(b) for b in (0, 1, 2, 3)] == [2, 2, 1, 1]
    one.append(*rows(1, seed=2))  # the last holder writes in place
    assert (one.block_table, pool.n_free) == ([0, 1, 2], 4)
    for cache, seed in ((one, 2), (two, 1)):
        for got, old, new in zip(cache.gather(), rows(10), rows(1, seed=seed), strict=True):
            np.testing.assert_array_equal(got, np.concatenate([old, new], axis=1))


def test_a_fork_at_a_blocks_end_copies_nothing():
    pool = pool_of(8)
    one = PagedCache(pool)
    one.append(*rows(8))
    two = one.fork()
    before = pool.k.copy()
    two.append(*rows(1))
    assert (two.block_table, pool.n_free) == ([0, 1, 2], 5)
    np.testing.assert_array_equal(pool.k[:2], before[:2])
    assert not pool.k[3:].any()


def test_an_empty_chunk_copies_nothing():
    pool = pool_of(4)
    one = PagedCache(pool)
    one.append(*rows(3))
    two = one.fork()
    before = state(pool, one, two)
    two.append(*rows(0))
    assert state(pool, one, two) == before


def test_freeing_one_leaves_the_other_whole():
    pool = pool_of(4)
    one = PagedCache(pool)
    one.append(*rows(6))
    two = one.fork()
    one.free()
    assert pool.n_free == 2
    PagedCache(pool).append(*rows(8, seed=5))  # takes every block that is free
    np.testing.assert_array_equal(two.gather()[0], rows(6)[0])


# What is refused


@pytest.mark.parametrize(("held", "n_new", "needed"), [(0, 13, 4), (4, 9, 3), (6, 7, 2)])
def test_a_pool_that_is_too_small_changes_nothing(held, n_new, needed):
    pool = pool_of(3)
    cache = PagedCache(pool)
    cache.append(*rows(held))
    before = state(pool, cache)
    with pytest.raises(MemoryError, match=f"{n_new} more tokens need {needed} more blocks and {pool.n_free} of 3"):
        cache.append(*rows(n_new))
    assert state(pool, cache) == before
    cache.append(*rows(12 - held))  # to the last slot
    assert (len(cache), pool.n_free) == (12, 0)


def test_a_copy_for_which_there_is_no_block_changes_nothing():
    """The shared last block has room, but writing it needs a block for the copy."""
    pool = pool_of(2)
    one = PagedCache(pool)
    one.append(*rows(6))
    two = one.fork()
    before = state(pool, one, two)
    for cache in (one, two):
        with pytest.raises(MemoryError, match="1 more tokens need 1 more blocks and 0 of 2 are free"):
            cache.append(*rows(1))
        assert state(pool, one, two) == before
    one.free()
    two.append(*rows(2))
    assert (two.block_table, len(two)) == ([0, 1], 8)


@pytest.mark.parametrize(
    ("k", "v", "message"),
    [
        (np.zeros((3, 1, 3)), np.zeros((2, 1, 3)), "k_new: .* n_kv_heads is 3"),
        (np.zeros((2, 1, 3)), np.zeros((2, 2, 3)), "v_new: .* n_new is 2"),
        (np.zeros((2, 1, 4)), np.zeros((2, 1, 4)), "k_new: .* head_dim is 4"),
        (np.zeros((2, 1, 3), np.float32), np.zeros((2, 1, 3)), "pool holds float64, got float32 keys"),
        (np.zeros((2, 1, 3)), np.zeros((2, 1, 3), np.float32), "got float64 keys and float32 values"),
    ],
)
def test_rows_that_do_not_fit_are_refused_and_nothing_changes(k, v, message, no_shape_hook):
    pool = pool_of(3)
    cache = PagedCache(pool)
    cache.append(*rows(3))
    before = state(pool, cache)
    with pytest.raises(ValueError, match=message):
        cache.append(k, v)
    assert state(pool, cache) == before


# Any run at all

OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["append", "append", "append", "fork", "free", "new"]), st.integers(0, 4), st.integers()),
    max_size=25,
)


@given(OPERATIONS, st.integers(1, 4), st.integers(1, 9))
def test_any_run_of_appends_forks_and_frees(operations, block_size, n_blocks):
    """Oracle: a plain list of rows a sequence, and blocks counted from the tables."""
    events: list[dict[str, Any]] = []
    pool = pool_of(n_blocks, block_size, events=events)
    held: list[tuple[PagedCache, list[np.ndarray]]] = [(PagedCache(pool), [])]
    for i, (do, size, which) in enumerate(operations):
        cache, expected = held[which % len(held)]
        if do == "append":
            k, _ = rows(size, seed=i)
            before = state(pool, *(c for c, _ in held))
            try:
                cache.append(k, k + 1)
                expected.append(k)
            except MemoryError:
                assert state(pool, *(c for c, _ in held)) == before
        elif do == "fork" and len(held) < 5:
            held.append((cache.fork(), list(expected)))
        elif do == "free":
            cache.free()
            expected.clear()
        elif do == "new" and len(held) < 5:
            held.append((PagedCache(pool), []))
        in_use = [b for c, _ in held for b in c.block_table]
        assert pool.n_free == n_blocks - len(set(in_use))
        assert all(pool.count(b) == in_use.count(b) for b in in_use)
        for c, want in held:
            k, v = c.gather()
            np.testing.assert_array_equal(k, np.concatenate([np.zeros((2, 0, 3)), *want], axis=1))
            np.testing.assert_array_equal(v, k + 1)
            assert len(c) == k.shape[1] and 0 <= len(c.block_table) * block_size - len(c) < block_size
    last = replay(events, n_blocks, block_size)[-1]
    assert last.tables == {c.name: c.block_table for c, _ in held if c.block_table}
    assert not [p for moment in replay(events, n_blocks, block_size) for p in moment.problems]


def test_nothing_is_recorded_unless_asked_for():
    assert pool_of(2).events is None
    events: list[dict[str, Any]] = []
    one = PagedCache(pool_of(4, events=events), name="a")
    one.append(*rows(5))
    one.fork("b").append(*rows(1))
    one.free()
    assert events == [
        {"do": "allocate", "sequence": "a", "block": 0},
        {"do": "allocate", "sequence": "a", "block": 1},
        {"do": "write", "sequence": "a", "n_tokens": 5},
        {"do": "fork", "sequence": "a", "to": "b"},
        {"do": "copy", "sequence": "b", "index": 1, "block": 2},
        {"do": "write", "sequence": "b", "n_tokens": 1},
        {"do": "release", "sequence": "a"},
    ]


# Prefixes


def test_keys_are_of_full_blocks_and_of_everything_before_them():
    a, b = block_keys(np.array([1, 2, 1, 2, 9]), 2), block_keys(np.array([5, 2, 1, 2]), 2)
    assert len(a) == len(b) == 2
    assert len({*a, *b}) == 4  # [1, 2] twice in a, and [1, 2] behind another block in b
    assert block_keys(np.array([1, 2, 1, 2], np.int32), 2) == a
    assert block_keys(np.array([1]), 2) == block_keys(np.array([], dtype=int), 2) == []
    # Frozen: SHA-256 of the two ids as little-endian 64-bit integers.
    assert a[0].hex() == "0c730b69905c5ef7a4ca5269f72365400bde2dd2c04eaf9bbb3d1c4a265a0131"


def content(ids: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Rows as a model makes them: each depends on all tokens up to its own."""
    k = np.zeros((2, len(ids), 3))
    for t in range(len(ids)):
        k[:, t] = float(int("1" + "".join(map(str, ids[: t + 1])), 4))
    return k, k + 0.5


def longest(ids: list[int], stored: list[list[int]], size: int) -> int:
    """Full blocks that `ids` has in common with any stored text, one token of `ids` left out."""
    common = [sum(1 for n in range(1, len(s) + 1) if s[:n] == ids[:n]) for s in stored]
    return min(max(common, default=0) // size, max(len(ids) - 1, 0) // size)


@given(st.lists(IDS, min_size=1, max_size=8), st.integers(1, 3))
def test_a_prefix_hit_holds_the_rows_that_a_run_would_give(texts, size):
    """Oracle: the longest common prefix with any text kept before, compared token by token."""
    pool = pool_of(200, size)
    index, stored = PrefixIndex(pool), []
    for ids in texts:
        cache = index.start(np.array(ids, dtype=int))
        n = len(cache)
        assert n == longest(ids, stored, size) * size
        assert n < len(ids) or n == 0, "nothing is left to run"
        k, v = content(ids)
        cache.append(k[:, n:], v[:, n:])
        for got, want in zip(cache.gather(), (k, v), strict=True):
            np.testing.assert_array_equal(got, want)
        index.keep(np.array(ids, dtype=int), cache)
        stored.append(ids)
        cache.free()
        assert pool.n_free == 200 - len(index)


@given(st.lists(st.tuples(IDS, st.integers(0, 3)), min_size=1, max_size=10))
def test_eviction_never_leaves_a_stale_block(texts):
    """A small pool: blocks go and are handed out again, and a hit is right all the same."""
    events: list[dict[str, Any]] = []
    pool = pool_of(8, 2, events=events)
    index = PrefixIndex(pool)
    for ids, n_evict in texts:
        n_held = len(index)
        assert index.evict(n_evict) == min(n_evict, n_held) == n_held - len(index)
        cache = index.start(np.array(ids, dtype=int))
        k, v = content(ids)
        n = len(cache)
        index.evict(max(0, -(-len(ids) // 2) - len(cache.block_table) - pool.n_free))
        cache.append(k[:, n:], v[:, n:])
        np.testing.assert_array_equal(cache.gather()[0], k)
        index.keep(np.array(ids, dtype=int), cache)
        cache.free()
    assert not [p for moment in replay(events, 8, 2) for p in moment.problems]
    index.evict(8)
    assert (pool.n_free, len(index)) == (8, 0)


def test_what_was_used_longest_ago_goes_first_and_children_before_parents():
    pool = pool_of(8, 2)
    index, texts = PrefixIndex(pool), [np.array([0, 0, 1, 1]), np.array([2, 2])]
    for ids in texts:
        cache = index.start(ids)
        cache.append(*rows(len(ids) - len(cache)))
        index.keep(ids, cache)
        cache.free()
    used = index.start(np.array([2, 2, 9]))
    assert index.evict(1) == 1
    probe = index.start(np.array([0, 0, 1, 1, 5]))
    assert len(probe) == 2  # the second block went, the first is still found
    probe.free()
    assert index.evict(8) == 1 and len(index) == 1  # what `used` holds stays
    assert len(used) == 2


def test_a_hit_counts_as_use():
    pool = pool_of(8, 2)
    index, texts = PrefixIndex(pool), [np.array([0, 0]), np.array([2, 2])]
    for ids in texts:
        cache = index.start(ids)
        cache.append(*rows(2))
        index.keep(ids, cache)
        cache.free()
    index.start(np.array([0, 0, 9])).free()
    index.evict(1)
    assert [len(index.start(np.append(ids, 9))) for ids in texts] == [2, 0]


def test_only_full_blocks_are_kept_and_none_twice():
    pool = pool_of(8, 4)
    index, ids = PrefixIndex(pool), np.arange(6)
    caches = [PagedCache(pool), PagedCache(pool)]
    for cache in caches:  # two requests that came at once: both ran the prefix
        cache.append(*rows(6))
        index.keep(ids, cache)
    assert len(index) == 1
    assert [pool.count(cache.block_table[0]) for cache in caches] == [2, 1]


def test_a_model_over_shared_blocks_gives_the_same_logits():
    model = TinyDecoder()
    pools = [BlockPool(20, 4, 2, 8) for _ in range(2)]
    indexes = [PrefixIndex(pool) for pool in pools]
    system = np.arange(10, 19)
    for question in ([1, 2, 3], [4, 5], [1, 2, 3]):
        ids = np.concatenate([system, question])
        caches = [index.start(ids) for index in indexes]
        logits = model(ids[len(caches[0]) :], caches)
        np.testing.assert_allclose(logits, model(ids)[-len(logits) :], rtol=0, atol=1e-12)
        for index, cache in zip(indexes, caches, strict=True):
            index.keep(ids, cache)
    assert len(caches[0]) == 12 and caches[0].block_table[:2] == [0, 1]


def test_what_an_index_refuses(no_shape_hook):
    pool = pool_of(4, 2)
    index, cache = PrefixIndex(pool), PagedCache(pool)
    cache.append(*rows(4))
    before = state(pool, cache)
    with pytest.raises(ValueError, match=r"ids: expected shape \(n=4,\), got \(3,\)"):
        index.keep(np.arange(3), cache)
    with pytest.raises(ValueError, match="another pool"):
        index.keep(np.arange(0), PagedCache(pool_of(4, 2)))
    with pytest.raises(ValueError, match="expected integers, got float64"):
        index.start(np.ones(4))
    with pytest.raises(ValueError, match=r"ids: expected shape \(n,\), got \(1, 2\): 2 axes"):
        index.start(np.array([[1, 2]]))
    with pytest.raises(ValueError, match="holds 4 tokens, only an empty one"):
        cache.share([0])
    with pytest.raises(ValueError, match="block 3 is not in use"):
        PagedCache(pool).share([0, 3])
    with pytest.raises(ValueError, match="block_size: expected a whole number of at least 1"):
        block_keys(np.arange(3), 0)
    assert state(pool, cache) == before


# Their events, replayed


def test_shared_and_dropped_blocks_are_replayed():
    events = [
        {"do": "allocate", "sequence": "a", "block": 2},
        {"do": "write", "sequence": "a", "n_tokens": 4},
        {"do": "share", "sequence": "index", "block": 2},
        {"do": "release", "sequence": "a"},
        {"do": "share", "sequence": "b", "block": 2},
        {"do": "drop", "sequence": "index", "block": 2},
    ]
    moments = replay(events, n_blocks=3, block_size=4)
    assert [m.counts[2] for m in moments] == [0, 1, 1, 2, 1, 2, 1]
    assert moments[-1].tables == {"index": [], "b": [2]} and moments[-1].n_tokens["b"] == 4
    assert moments[5].said == "b shares block 2 as its logical block 0"
    assert moments[6].said == "index lets go of block 2"
    assert not [p for m in moments for p in m.problems]


def test_a_block_shared_after_it_went_free_is_named():
    stale = [{"do": "share", "sequence": "b", "block": 2}]
    assert replay(stale, 3, 4)[1].problems == ["block 2 is shared while nobody holds it: its contents may be any"]
    part = [{"do": "allocate", "sequence": "a", "block": 0}, {"do": "write", "sequence": "a", "n_tokens": 1}]
    with pytest.raises(ValueError, match="a has a block that is not full"):
        replay([*part, {"do": "share", "sequence": "a", "block": 0}], 3, 4)
    with pytest.raises(ValueError, match="a holds no block 1"):
        replay([*part, {"do": "drop", "sequence": "a", "block": 1}], 3, 4)
