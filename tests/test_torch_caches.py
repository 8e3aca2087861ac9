"""The PyTorch caches: the laws of the NumPy ones, and what only an in-place buffer can get wrong."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlab import caches as numpy_caches
from kvlab.torch_caches import ConcatCache, StaticCache, TorchCache, update_cache

torch.set_num_threads(1)  # on tensors this small threads only wait for each other

BATCH, N_KV_HEADS, HEAD_DIM, MAX_LEN = 2, 3, 4, 11  # no two axes equal


def rows(n: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(BATCH, N_KV_HEADS, n, HEAD_DIM, generator=generator, dtype=dtype)


def make(kind: str) -> TorchCache:
    if kind == "concat":
        return ConcatCache(BATCH, N_KV_HEADS, HEAD_DIM)
    return StaticCache(BATCH, N_KV_HEADS, MAX_LEN, HEAD_DIM)


KINDS = pytest.mark.parametrize("kind", ["concat", "static"])


@KINDS
@given(chunks=st.lists(st.integers(0, 4), max_size=5).filter(lambda c: sum(c) <= MAX_LEN))
@settings(max_examples=40, deadline=None)
def test_any_chunking_gives_all_rows_in_order(kind: str, chunks: list[int]) -> None:
    cache, pair = make(kind), None
    k, v = rows(sum(chunks)), rows(sum(chunks), seed=1)
    done = 0
    for n in chunks:
        new = k[:, :, done : done + n], v[:, :, done : done + n]
        pair = update_cache(pair, *new)
        got = cache.update(*new)
        done += n
        for ours, theirs, want in zip(got, pair, (k, v), strict=True):
            assert torch.equal(ours, want[:, :, :done]) and torch.equal(theirs, want[:, :, :done])
        assert len(cache) == done


@KINDS
def test_agrees_with_the_numpy_cache(kind: str) -> None:
    torch_cache = make(kind)
    numpy_cache = (
        numpy_caches.ConcatCache(N_KV_HEADS, HEAD_DIM)
        if kind == "concat"
        else numpy_caches.StaticCache(N_KV_HEADS, MAX_LEN, HEAD_DIM, dtype=np.float32)
    )
    for seed, n in enumerate([5, 0, 3, 1]):
        k, v = rows(n, seed), rows(n, seed + 10)
        ours = torch_cache.update(k, v)
        theirs = numpy_cache.append(k[1].numpy(), v[1].numpy())  # one sequence of the batch
        assert all(np.array_equal(a[1].numpy(), b) for a, b in zip(ours, theirs, strict=True))
    assert len(torch_cache) == len(numpy_cache) == 9
    assert torch_cache.n_bytes == BATCH * numpy_cache.n_bytes


@KINDS
def test_reset_and_rerun(kind: str) -> None:
    cache = make(kind)
    cache.update(rows(7), rows(7))
    cache.reset()
    assert len(cache) == 0
    k, _ = cache.update(rows(2, seed=5), rows(2, seed=6))
    assert torch.equal(k, rows(2, seed=5))
    assert len(cache) == 2


@KINDS
def test_inputs_are_not_kept_and_not_changed(kind: str) -> None:
    cache = make(kind)
    k, v = rows(3), rows(3, seed=1)
    cache.update(k, v)
    assert torch.equal(k, rows(3)) and torch.equal(v, rows(3, seed=1))
    k.zero_(), v.zero_()
    all_k, all_v = cache.update(rows(1), rows(1))
    assert torch.equal(all_k[:, :, :3], rows(3)) and torch.equal(all_v[:, :, :3], rows(3, seed=1))


def test_what_a_concat_cache_returned_never_changes() -> None:
    cache = make("concat")
    early, _ = cache.update(rows(3), rows(3))
    late, _ = cache.update(rows(2, seed=2), rows(2, seed=2))
    cache.reset()
    cache.update(rows(5, seed=3), rows(5, seed=3))
    assert torch.equal(early, rows(3))
    assert torch.equal(late, torch.cat([rows(3), rows(2, seed=2)], dim=2))


def test_update_cache_leaves_the_old_pair() -> None:
    past = (rows(4), rows(4, seed=1))
    k, v = update_cache(past, rows(1, seed=2), rows(1, seed=3))
    assert k.shape == v.shape == (BATCH, N_KV_HEADS, 5, HEAD_DIM)
    assert torch.equal(past[0], rows(4)) and torch.equal(past[1], rows(4, seed=1))
    k.zero_()
    assert torch.equal(past[0], rows(4))


def test_static_storage_is_allocated_once_and_returned_as_views() -> None:
    cache = StaticCache(BATCH, N_KV_HEADS, MAX_LEN, HEAD_DIM)
    before = cache.n_bytes
    addresses = set()
    for n in (5, 1, 0, 5):
        k, v = cache.update(rows(n), rows(n))
        addresses.add((k.data_ptr(), v.data_ptr()))
    assert len(addresses) == 1
    assert cache.n_bytes == before == 2 * BATCH * N_KV_HEADS * MAX_LEN * HEAD_DIM * 4


def test_one_token_too_many_raises_and_writes_nothing() -> None:
    cache = StaticCache(BATCH, N_KV_HEADS, MAX_LEN, HEAD_DIM)
    cache.update(rows(MAX_LEN - 1), rows(MAX_LEN - 1))
    with pytest.raises(ValueError, match="10 of 11 slots are filled, 2 more do not fit"):
        cache.update(rows(2, seed=9), rows(2, seed=9))
    assert len(cache) == MAX_LEN - 1
    k, _ = cache.update(rows(1, seed=4), rows(1, seed=4))
    assert torch.equal(k, torch.cat([rows(MAX_LEN - 1), rows(1, seed=4)], dim=2))
    with pytest.raises(ValueError, match="11 of 11"):
        cache.update(rows(1), rows(1))


def test_dtype_and_protocol() -> None:
    cache = StaticCache(BATCH, N_KV_HEADS, MAX_LEN, HEAD_DIM, dtype=torch.float64)
    k, _ = cache.update(rows(2, dtype=torch.float64), rows(2, dtype=torch.float64))
    assert k.dtype == torch.float64
    assert make("static").update(rows(2), rows(2))[0].dtype == torch.float32
    assert isinstance(cache, TorchCache) and isinstance(make("concat"), TorchCache)


BAD_ROWS = [
    ((rows(2)[0], rows(2)), "k: expected shape"),
    ((rows(2), rows(3)), "n_new is 3"),
    ((rows(2)[:1], rows(2)[:1]), "batch"),
    ((rows(2)[:, :2], rows(2)[:, :2]), "n_kv_heads"),
    ((rows(2)[..., :3], rows(2)[..., :3]), "head_dim"),
    ((rows(2, dtype=torch.float64), rows(2, dtype=torch.float64)), "expected torch.float32 on cpu, got torch.float64"),
    ((rows(2), rows(2, dtype=torch.float64)), "v: expected torch.float32"),
]


@pytest.mark.usefixtures("no_shape_hook")
@KINDS
@pytest.mark.parametrize(("bad", "message"), BAD_ROWS)
def test_bad_rows_are_refused_and_nothing_is_stored(kind: str, bad: tuple, message: str) -> None:
    cache = make(kind)
    cache.update(rows(2), rows(2))
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        cache.update(*bad)
    assert len(cache) == 2
    with pytest.raises(ValueError):
        update_cache((rows(2), rows(2)), *bad)


@pytest.mark.usefixtures("no_shape_hook")
@pytest.mark.parametrize("sizes", [(0, 1, 1, 1), (1, 0, 1, 1), (1, 1, 0, 1), (1, 1, 1, 0), (1, 1, 2.5, 1)])
def test_bad_sizes_are_refused(sizes: tuple) -> None:
    with pytest.raises(ValueError, match="expected a whole number of at least 1"):
        StaticCache(*sizes)
    batch, n_kv_heads, max_len, head_dim = sizes
    if max_len == 1:
        with pytest.raises(ValueError, match="expected a whole number of at least 1"):
            ConcatCache(batch, n_kv_heads, head_dim)
