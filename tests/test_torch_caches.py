"""The PyTorch caches: the laws of the NumPy ones, and what only an in-place buffer can get wrong."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlab import caches as numpy_caches
from kvlab import masks
from kvlab.caches import quantized as numpy_quantized
from kvlab.torch_caches import (
    BlockPool,
    ConcatCache,
    PagedCache,
    QuantizedCache,
    RingCache,
    SinkCache,
    StaticCache,
    TorchCache,
    attendable,
    quantize,
    update_cache,
    visible,
)
from kvlab.torch_caches.quantized import dequantize, pack, unpack

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


# The forms of part II: the NumPy ones are held to the course's laws in test_cache_contract.py, these to the NumPy ones

WINDOW, N_SINKS, BLOCK_SIZE, RESIDUAL = 4, 2, 3, 4
POOL = (6, BLOCK_SIZE, N_KV_HEADS, HEAD_DIM)
PAIRS = {
    "ring": (
        lambda: RingCache(BATCH, N_KV_HEADS, HEAD_DIM, WINDOW),
        lambda: numpy_caches.RingCache(N_KV_HEADS, HEAD_DIM, WINDOW),
    ),
    "sink": (
        lambda: SinkCache(BATCH, N_KV_HEADS, HEAD_DIM, N_SINKS, WINDOW),
        lambda: numpy_caches.SinkCache(N_KV_HEADS, HEAD_DIM, N_SINKS, WINDOW),
    ),
    "paged": (
        lambda: PagedCache(BlockPool(*POOL)),
        lambda: numpy_caches.PagedCache(numpy_caches.BlockPool(*POOL, np.float32)),
    ),
    "quantized": (
        lambda: QuantizedCache(BATCH, N_KV_HEADS, HEAD_DIM, 4, RESIDUAL),
        lambda: numpy_caches.QuantizedCache(N_KV_HEADS, HEAD_DIM, 4, RESIDUAL),
    ),
}


@pytest.mark.parametrize("kind", PAIRS)
def test_agrees_with_its_numpy_form_bit_by_bit(kind: str) -> None:
    ours, theirs = (make_one() for make_one in PAIRS[kind])
    batch = 1 if kind == "paged" else BATCH
    for seed, n in enumerate([5, 0, 3, 1, 1, 6]):
        k, v = (rows(n, seed + shift)[-batch:] for shift in (0, 10))
        got = attendable(ours, k, v)
        want = numpy_caches.attendable(theirs, k[-1].numpy(), v[-1].numpy())  # one sequence of the batch
        assert np.array_equal(got.k[-1].numpy(), want.k) and np.array_equal(got.v[-1].numpy(), want.v)
        assert (got.mask is None) == (want.mask is None)
        assert want.mask is None or np.array_equal(got.mask.numpy(), want.mask)
    assert len(ours) == len(theirs) == 16
    assert ours.n_bytes == batch * theirs.n_bytes
    ours.reset()
    assert len(ours) == 0 and isinstance(ours, TorchCache)


@pytest.mark.parametrize("kind", ["ring", "sink"])
def test_positions_come_with_the_rows(kind: str) -> None:
    cache = PAIRS[kind][0]()
    assert cache.update(rows(7), rows(7))[2].tolist() == [0, 1, 2, 3, 4, 5, 6]
    _, _, positions = cache.update(rows(2), rows(2))
    assert positions.tolist() == [*([0, 1] if kind == "sink" else []), 4, 5, 6, 7, 8]
    assert positions.dtype == torch.int64


@pytest.mark.parametrize("kind", ["ring", "sink", "paged"])
def test_part_two_storage_is_allocated_once(kind: str) -> None:
    cache = PAIRS[kind][0]()
    store = cache.pool if kind == "paged" else cache
    names = ("k", "v") if kind == "paged" else ("_k", "_v")
    addresses = {tuple(getattr(store, name).data_ptr() for name in names)}
    batch = 1 if kind == "paged" else BATCH
    for n in (5, 1, 0, 7):
        cache.update(rows(n)[:batch], rows(n)[:batch])
        addresses.add(tuple(getattr(store, name).data_ptr() for name in names))
    cache.reset()
    cache.update(rows(2)[:batch], rows(2)[:batch])
    addresses.add(tuple(getattr(store, name).data_ptr() for name in names))
    assert len(addresses) == 1


@pytest.mark.parametrize("kind", ["concat", "static", "ring", "sink", "paged"])
def test_everything_stays_on_the_device_of_the_rows(kind: str) -> None:
    """torch's "meta" device has shapes and no numbers: whatever is made elsewhere does not mix with it."""
    sizes, where = (1, N_KV_HEADS, HEAD_DIM), {"device": "meta"}
    cache = {
        "concat": lambda: ConcatCache(*sizes),
        "static": lambda: StaticCache(1, N_KV_HEADS, MAX_LEN, HEAD_DIM, **where),
        "ring": lambda: RingCache(*sizes, WINDOW, **where),
        "sink": lambda: SinkCache(*sizes, N_SINKS, WINDOW, **where),
        "paged": lambda: PagedCache(BlockPool(*POOL, **where)),
    }[kind]()
    for n in (5, 0, 1, 3):
        new = torch.zeros(1, N_KV_HEADS, n, HEAD_DIM, **where)
        found = attendable(cache, new, new)
        assert {x.device.type for x in found if x is not None} == {"meta"}
    assert len(cache) == 9


@pytest.mark.parametrize("kind", ["ring", "sink"])
def test_attention_through_the_mask_equals_torchs_own_over_the_whole_sequence(kind: str) -> None:
    """An oracle that shares nothing with ours: scaled_dot_product_attention under a mask written out by hand."""
    q, k, v = (rows(11, seed, torch.float64) for seed in (0, 1, 2))
    at = torch.arange(11)
    near = (at[:, None] - at[None, :] < WINDOW) | (at[None, :] < (N_SINKS if kind == "sink" else 0))
    sdpa = torch.nn.functional.scaled_dot_product_attention
    whole = sdpa(q, k, v, attn_mask=near & (at[:, None] >= at[None, :]))
    sizes = (BATCH, N_KV_HEADS, HEAD_DIM)
    cache = (
        RingCache(*sizes, WINDOW, torch.float64)
        if kind == "ring"
        else SinkCache(*sizes, N_SINKS, WINDOW, torch.float64)
    )
    parts, done = [], 0
    for n in (5, 1, 3, 0, 2):
        new = slice(done, done + n)
        keys, values, mask = attendable(cache, k[:, :, new], v[:, :, new])
        parts.append(sdpa(q[:, :, new], keys, values, attn_mask=mask))
        done += n
    torch.testing.assert_close(torch.cat(parts, dim=2), whole, rtol=0, atol=1e-12)


@given(data=st.data(), window=st.one_of(st.none(), st.integers(1, 6)), n_sinks=st.integers(0, 4))
def test_visible_is_that_of_the_masks(data: st.DataObject, window: int | None, n_sinks: int) -> None:
    queries, keys = (np.array(data.draw(st.lists(st.integers(0, 12), max_size=6)), dtype=np.int64) for _ in range(2))
    ours = visible(torch.from_numpy(queries), torch.from_numpy(keys), window, n_sinks)
    assert np.array_equal(ours.numpy(), masks.visible(queries, keys, window, n_sinks))


@pytest.mark.usefixtures("no_shape_hook")
@pytest.mark.parametrize(("window", "n_sinks", "says"), [(0, 0, "window: .* got 0"), (3, -1, "n_sinks: .* got -1")])
def test_visible_refuses_what_the_masks_refuse(window: int, n_sinks: int, says: str) -> None:
    at = torch.arange(3)
    with pytest.raises(ValueError, match=says):
        visible(at, at, window, n_sinks)
    with pytest.raises(ValueError, match="key_positions"):
        visible(at, at[None], 2)


# Quantization


@given(n_bits=st.integers(2, 8), axis=st.integers(0, 2), seed=st.integers(0, 99), spread=st.sampled_from([0, 1, 40]))
def test_quantize_is_numpys(n_bits: int, axis: int, seed: int, spread: int) -> None:
    x = (np.random.default_rng(seed).standard_normal((2, 5, 3)) * spread + 7).astype(np.float32)
    ours = quantize(torch.from_numpy(x), n_bits, axis)
    theirs = numpy_quantized.quantize(x, n_bits, axis)
    assert all(np.array_equal(a.numpy(), b) and a.numpy().dtype == b.dtype for a, b in zip(ours, theirs, strict=True))
    assert np.array_equal(dequantize(*ours).numpy(), numpy_quantized.dequantize(*theirs))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("n_bits", [2, 4, 8])
def test_every_number_is_within_half_a_step(dtype: torch.dtype, n_bits: int) -> None:
    x = (10 * rows(7, dtype=torch.float64)).to(dtype)
    codes, scale, zero = quantize(x, n_bits, 2)
    error = (dequantize(codes, scale, zero).double() - x.double()).abs()
    rounding = 4 * torch.finfo(dtype).eps * x.double().abs().amax(2, keepdim=True)
    assert (error <= scale.double() / 2 * (1 + 2**n_bits * torch.finfo(dtype).eps) + rounding).all()
    assert int(codes.max()) == 2**n_bits - 1 and int(codes.min()) == 0


def test_equal_numbers_come_back_exactly() -> None:
    x = torch.full((2, 3, 4), -0.3)
    assert torch.equal(dequantize(*quantize(x, 4, 1)), x)


@given(n_bits=st.integers(2, 8), n=st.integers(0, 40), seed=st.integers(0, 99))
def test_packed_codes_come_back(n_bits: int, n: int, seed: int) -> None:
    codes = torch.from_numpy(np.random.default_rng(seed).integers(0, 2**n_bits, (2, 3, n), dtype=np.uint8))
    packed = pack(codes, n_bits)
    assert packed.dtype == torch.uint8 and packed.numel() == 6 * n_bits * -(-n // 8)
    assert torch.equal(unpack(packed, n), codes)


def test_the_stated_bound_is_half_a_step_and_0_for_exact_rows() -> None:
    ours, theirs = (make_one() for make_one in PAIRS["quantized"])
    k, v = rows(11), rows(11, seed=1)
    got = ours.update(k, v)
    theirs.append(k[1].numpy(), v[1].numpy())
    for bound, numpys, rows_got, rows_given in zip(
        ours.error_bounds(), theirs.error_bounds(), got, (k, v), strict=True
    ):
        assert np.array_equal(bound[1].numpy(), numpys)
        assert (bound[:, :, 8:] == 0).all() and (bound[:, :, :8] > 0).all()
        assert ((rows_got - rows_given).abs() <= bound * 1.0001 + 1e-6).all()
        assert torch.equal(rows_got[:, :, 8:], rows_given[:, :, 8:])
    with pytest.raises(ValueError, match="the cache is empty"):
        PAIRS["quantized"][0]().error_bounds()


@pytest.mark.usefixtures("no_shape_hook")
@pytest.mark.parametrize(
    ("x", "n_bits", "axis", "says"),
    [
        (torch.ones(2, 3), 1, 0, "n_bits: .* got 1"),
        (torch.ones(2, 3), 9, 0, "n_bits: .* got 9"),
        (torch.ones(2, 3), 4, 2, "nothing along axis 2"),
        (torch.ones(2, 3), 4, -3, "nothing along axis -3"),
        (torch.ones(2, 0), 4, 1, "nothing along axis 1"),
        (torch.tensor([1.0, float("nan")]), 4, 0, "nan or inf"),
        (torch.tensor([1.0, float("inf")]), 4, 0, "nan or inf"),
        (torch.tensor([-3e38, 3e38]), 4, 0, "further apart than torch.float32 can say"),
    ],
)
def test_quantize_refuses(x: torch.Tensor, n_bits: int, axis: int, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        quantize(x, n_bits, axis)


@pytest.mark.usefixtures("no_shape_hook")
@pytest.mark.parametrize(
    ("codes", "scale", "zero", "says"),
    [
        (torch.ones(2, 3), torch.ones(2, 1), torch.ones(2, 1), "codes must be uint8, got torch.float32"),
        (torch.ones(2, 3, dtype=torch.uint8), torch.ones(2), torch.ones(2, 1), "scale of shape .2,. does not fit"),
        (torch.ones(2, 3, dtype=torch.uint8), torch.ones(2, 1), torch.ones(4, 1), "zero of shape .4, 1. does not fit"),
    ],
)
def test_dequantize_refuses(codes: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        dequantize(codes, scale, zero)
