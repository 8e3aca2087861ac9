"""Quantizing: every number within half a step, no code outside its range, and a cache whose answer depends on rows."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from kvlab.caches import QuantizedCache, dequantize, quantize
from kvlab.caches.quantized import pack, unpack

BITS = st.integers(2, 8)
FLOATS = st.sampled_from([np.float16, np.float32, np.float64])
AXES = [None, 0, 1, 2, -1, (1, 2), (0, -1), ()]


def normal(*shape: int, seed: int = 0, dtype: Any = np.float64) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def smallest(dtype: Any) -> float:
    return float(np.finfo(dtype).smallest_subnormal)


def rounding(x: np.ndarray) -> float:
    """What the arithmetic of x's own dtype may add to half a step."""
    return 8 * float(np.finfo(x.dtype).eps) * float(np.abs(x).max(initial=0)) + 2 * smallest(x.dtype)


@st.composite
def arrays(draw: Any) -> np.ndarray:
    dtype = draw(FLOATS)
    numbers = st.floats(-3e4, 3e4, width=16)
    return draw(hnp.arrays(dtype, hnp.array_shapes(min_dims=3, max_dims=3, max_side=4), elements=numbers))


@given(x=arrays(), n_bits=BITS, axis=st.sampled_from(AXES))
def test_every_number_is_within_half_a_step(x, n_bits, axis):
    given_x = x.copy()
    codes, scale, zero = quantize(x, n_bits, axis)
    kept = tuple(range(3)) if axis is None else axis
    assert codes.dtype == np.uint8 and codes.shape == x.shape and codes.max() < 2**n_bits
    assert scale.dtype == zero.dtype == x.dtype
    assert scale.shape == zero.shape == x.min(axis=kept, keepdims=True).shape
    np.testing.assert_array_equal(zero, x.min(axis=kept, keepdims=True))
    back = dequantize(codes, scale, zero)
    assert back.dtype == x.dtype
    gap = np.abs(back.astype(np.float64) - x.astype(np.float64))
    assert (gap <= scale.astype(np.float64) / 2 + rounding(x)).all()
    np.testing.assert_array_equal(x, given_x)


@pytest.mark.parametrize("n_bits", range(2, 9))
@pytest.mark.parametrize("axis", AXES)
def test_it_is_the_nearest_of_evenly_spaced_levels(n_bits, axis):
    """By another road: lay the levels out and take the nearest one."""
    x = normal(2, 5, 3, seed=n_bits)
    back = dequantize(*quantize(x, n_bits, axis))
    reduced = tuple(range(3)) if axis is None else axis
    lowest, highest = (f(axis=reduced, keepdims=True) for f in (x.min, x.max))
    levels = np.stack([lowest + (highest - lowest) * i / (2**n_bits - 1) for i in range(2**n_bits)])
    nearest = np.abs(levels - x).argmin(axis=0)
    expected = np.take_along_axis(np.broadcast_to(levels, (2**n_bits, *x.shape)), nearest[None], axis=0)[0]
    np.testing.assert_allclose(back, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("n_steps", [1, 3, 15, 100, 382, 1650, 16_700])
@pytest.mark.parametrize("n_bits", [2, 4, 8])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_half_a_step_holds_where_a_scale_is_coarse(dtype, n_bits, n_steps):
    """Ranges of a few of the dtype's smallest steps: a scale is one, two, three of them and nothing between."""
    x = (np.array([0, n_steps // 3, n_steps // 2, n_steps]) * smallest(dtype)).astype(dtype)
    codes, scale, zero = quantize(x, n_bits, axis=0)
    assert codes.max() < 2**n_bits
    back = dequantize(codes, scale, zero).astype(np.float64)
    assert (np.abs(back - x.astype(np.float64)) <= scale.astype(np.float64) / 2 + smallest(dtype)).all()


def test_frozen_values():
    x = np.array([[[0.0, 10.0, -1.0], [1.0, 10.0, 0.5], [3.0, 10.0, 2.0]]])
    codes, scale, zero = quantize(x, 2, axis=1)
    assert codes.tolist() == [[[0, 0, 0], [1, 0, 2], [3, 0, 3]]]
    assert scale.tolist() == [[[1.0, 0.0, 1.0]]] and zero.tolist() == [[[0.0, 10.0, -1.0]]]
    assert dequantize(codes, scale, zero).tolist() == [[[0.0, 10.0, -1.0], [1.0, 10.0, 1.0], [3.0, 10.0, 2.0]]]
    codes, scale, zero = quantize(x, 8, axis=None)
    assert codes.ravel().tolist() == [23, 255, 0, 46, 255, 35, 93, 255, 70]
    assert (scale.shape, scale.item(), zero.item()) == ((1, 1, 1), 11 / 255, -1.0)


@given(value=st.floats(-1e300, 1e300), n_bits=BITS, dtype=FLOATS)
def test_a_constant_slice_comes_back_exactly(value, n_bits, dtype):
    x = np.full((2, 3, 4), np.clip(value, np.finfo(dtype).min, np.finfo(dtype).max), dtype)
    x[1, 1, 1] += 1  # one channel of one head varies
    back = dequantize(*quantize(x, n_bits, axis=1))
    constant = np.ones((2, 4), bool)
    constant[1, 1] = False
    np.testing.assert_array_equal(back.transpose(0, 2, 1)[constant], x.transpose(0, 2, 1)[constant])


def test_no_rows_to_quantize_is_fine_where_each_has_its_own_scale():
    codes, scale, zero = quantize(np.zeros((2, 0, 4)), 4, axis=2)
    assert codes.shape == (2, 0, 4) and scale.shape == zero.shape == (2, 0, 1)
    assert dequantize(codes, scale, zero).shape == (2, 0, 4)


@pytest.mark.usefixtures("no_shape_hook")
@pytest.mark.parametrize(
    ("x", "n_bits", "axis", "words"),
    [
        (np.ones((1, 2, 3)), 1, 1, "n_bits: expected a whole number from 2 to 8, got 1"),
        (np.ones((1, 2, 3)), 9, 1, "n_bits: expected a whole number from 2 to 8, got 9"),
        (np.ones((1, 2, 3)), 4.0, 1, "n_bits: expected a whole number from 2 to 8, got 4.0"),
        (np.ones((1, 2, 3)), True, 1, "n_bits: expected a whole number from 2 to 8, got True"),
        (np.ones((1, 2, 3)), 4, 3, "axis 3 is out of bounds for array of dimension 3"),
        (np.ones((1, 0, 3)), 4, 1, r"shape \(1, 0, 3\) has nothing along axis 1"),
        (np.array([[0.0, np.nan]]), 4, 1, "nan or inf"),
        (np.array([[0.0, -np.inf]]), 4, 1, "nan or inf"),
        (np.array([[-60000, 60000]], np.float16), 4, 1, "further apart than float16 can say"),
        (np.arange(6).reshape(2, 3), 4, 1, "x: expected floats, got int64"),
        ([[0.0, 1.0]], 4, 1, "x: expected floats, got list"),
    ],
)
def test_bad_input_is_refused_in_words(x, n_bits, axis, words):
    with pytest.raises(ValueError, match=words):
        quantize(x, n_bits, axis)


@pytest.mark.usefixtures("no_shape_hook")
def test_codes_and_scales_that_do_not_fit_are_refused():
    codes, scale, zero = quantize(normal(2, 5, 3), 4, 1)
    with pytest.raises(ValueError, match="codes must be uint8, got int64"):
        dequantize(codes.astype(np.int64), scale, zero)
    with pytest.raises(ValueError, match=r"scale of shape \(2, 5, 1\) does not fit codes of shape \(2, 4, 3\)"):
        dequantize(codes[:, :4], np.ones((2, 5, 1)), zero)
    with pytest.raises(ValueError, match=r"zero of shape \(2, 3\) does not fit"):
        dequantize(codes, scale, zero[:, 0])
    with pytest.raises(ValueError, match="codes must be uint8, got list"):
        dequantize(codes.tolist(), scale, zero)
    with pytest.raises(ValueError, match=r"scale of shape \(\) does not fit"):
        dequantize(codes, 0.5, zero)


@given(n_bits=BITS, shape=st.tuples(st.integers(1, 3), st.integers(0, 20)), seed=st.integers(0, 99))
def test_packed_codes_come_back_and_take_n_bits_each(n_bits, shape, seed):
    codes = np.random.default_rng(seed).integers(0, 2**n_bits, shape).astype(np.uint8)
    packed = pack(codes, n_bits)
    np.testing.assert_array_equal(unpack(packed, shape[1]), codes)
    assert packed.nbytes == shape[0] * n_bits * -(-shape[1] // 8)


def test_an_outlier_channel_ruins_one_scale_for_all_and_not_a_scale_of_its_own():
    k = normal(2, 64, 16)
    k[:, :, 5] *= 40
    others = np.arange(16) != 5
    error = {axis: np.abs(dequantize(*quantize(k, 4, axis)) - k)[..., others].mean() for axis in (None, 2, 1)}
    assert error[1] < 0.1 < 0.5 < min(error[None], error[2])


# --- the cache


def filled(sizes: list[int], n_bits: int = 4, residual: int = 4, dtype: Any = np.float64) -> Any:
    """A (2, n, 3) cache that took rows in these chunks, the rows, and what each append returned."""
    k, v = (normal(2, sum(sizes), 3, seed=s, dtype=dtype) for s in (1, 2))
    cache, returned, at = QuantizedCache(2, 3, n_bits, residual), [], 0
    for n in sizes:
        returned.append(cache.append(k[:, at : at + n], v[:, at : at + n]))
        at += n
    return cache, k, v, returned


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@given(sizes=st.lists(st.integers(0, 9), min_size=1, max_size=6), n_bits=BITS, residual=st.integers(1, 6))
def test_full_groups_are_quantized_together_and_the_rest_is_exact(dtype, sizes, n_bits, residual):
    cache, k, v, returned = filled(sizes, n_bits, residual, dtype)
    n = 0
    for n_new, (k_seen, v_seen) in zip(sizes, returned, strict=True):
        n += n_new
        n_full = n // residual * residual
        assert k_seen.dtype == v_seen.dtype == dtype and k_seen.shape == v_seen.shape == (2, n, 3)
        np.testing.assert_array_equal(k_seen[:, n_full:], k[:, n_full:n])
        np.testing.assert_array_equal(v_seen[:, n_full:], v[:, n_full:n])
        for at in range(0, n_full, residual):
            rows = slice(at, at + residual)
            np.testing.assert_array_equal(k_seen[:, rows], dequantize(*quantize(k[:, rows], n_bits, axis=1)))
            np.testing.assert_array_equal(v_seen[:, rows], dequantize(*quantize(v[:, rows], n_bits, axis=2)))
    assert len(cache) == n
    for seen, exact, bound in zip(returned[-1], (k, v), cache.error_bounds(), strict=True):
        assert bound.shape == exact.shape
        assert (np.abs(seen - exact) <= bound + rounding(exact)).all()
        assert not bound[:, n // residual * residual :].any()


def test_the_answer_does_not_depend_on_the_chunks():
    for sizes in ([13], [1] * 13, [5, 0, 8], [4, 4, 5]):
        _, _, _, returned = filled(sizes)
        for ours, whole in zip(returned[-1], filled([13])[3][-1], strict=True):
            np.testing.assert_array_equal(ours, whole)


@pytest.mark.parametrize(("n_bits", "residual", "dtype"), [(4, 4, np.float32), (8, 6, np.float64), (2, 5, np.float16)])
def test_bytes_are_codes_scales_zeros_and_exact_rows(n_bits, residual, dtype):
    cache, size = QuantizedCache(2, 8, n_bits, residual), np.dtype(dtype).itemsize
    rows = normal(2, 3 * residual + 2, 8, dtype=dtype)
    cache.append(rows, rows)
    codes = 2 * 3 * (2 * residual * 8) * n_bits // 8  # keys and values, 3 groups
    key_scales, value_scales = 2 * 3 * 2 * 8 * size, 2 * 3 * 2 * residual * size  # each a scale and a zero
    exact = 2 * 2 * 2 * 8 * size
    assert cache.n_bytes == codes + key_scales + value_scales + exact


def test_fewer_bytes_than_the_rows_themselves_from_a_group_of_some_size_on():
    rows = normal(2, 128, 64, dtype=np.float32)
    bytes_of = {}
    for residual in (1, 32):
        cache = QuantizedCache(2, 64, 4, residual)
        cache.append(rows, rows)
        bytes_of[residual] = cache.n_bytes
    assert bytes_of[32] < 2 * rows.nbytes / 4 < 2 * rows.nbytes < bytes_of[1]


def test_a_group_of_one_row_keeps_its_keys_exactly():
    _, k, _, returned = filled([3], n_bits=2, residual=1)
    np.testing.assert_array_equal(returned[0][0], k)


def test_more_bits_are_closer():
    def error(n_bits: int) -> float:
        _, k, _, returned = filled([16], n_bits, residual=8)
        return np.abs(returned[0][0] - k).max()

    errors = [error(n_bits) for n_bits in range(2, 9)]
    assert errors == sorted(errors, reverse=True) and errors[0] > 30 * errors[-1]


def test_reset_and_rerun():
    cache, k, v, returned = filled([3, 6], dtype=np.float32)
    cache.reset()
    assert (len(cache), cache.n_bytes) == (0, 0)
    again = cache.append(k.astype(np.float64), v.astype(np.float64))
    assert again[0].dtype == np.float64
    np.testing.assert_allclose(again[0], returned[-1][0], atol=1e-6)


def test_inputs_are_copied_and_left_alone_and_answers_stay():
    k, v = normal(2, 6, 3), normal(2, 6, 3, seed=1)
    k_given, v_given = k.copy(), v.copy()
    cache = QuantizedCache(2, 3, 4, 4)
    first = cache.append(k, v)
    kept = [a.copy() for a in first]
    np.testing.assert_array_equal(k, k_given)
    np.testing.assert_array_equal(v, v_given)
    k[:], v[:] = 7, 7
    k_all, v_all = cache.append(normal(2, 1, 3), normal(2, 1, 3))
    np.testing.assert_array_equal(k_all[:, 4:6], k_given[:, 4:])
    np.testing.assert_array_equal(v_all[:, 4:6], v_given[:, 4:])
    for a, b in zip(first, kept, strict=True):
        np.testing.assert_array_equal(a, b)
        with pytest.raises(ValueError, match="read-only"):
            a[:] = 0


def test_the_dtype_follows_the_first_append():
    cache = QuantizedCache(2, 3, 4, 4)
    cache.append(normal(2, 3, 3, dtype=np.float32), normal(2, 3, 3, dtype=np.float32))
    k, v = cache.append(normal(2, 3, 3), normal(2, 3, 3))
    assert k.dtype == v.dtype == np.float32


@pytest.mark.usefixtures("no_shape_hook")
@pytest.mark.parametrize(
    ("k", "v", "words"),
    [
        (np.zeros((3, 2, 3)), np.zeros((3, 2, 3)), "n_kv_heads is 3"),
        (np.zeros((2, 2, 3)), np.zeros((2, 3, 3)), "v_new: expected shape"),
        (np.zeros((2, 2, 4)), np.zeros((2, 2, 3)), "head_dim is 4"),
        (np.full((2, 1, 3), np.nan), np.zeros((2, 1, 3)), "k_new: expected finite numbers"),
        (np.zeros((2, 1, 3)), np.full((2, 1, 3), np.inf), "v_new: expected finite numbers"),
        (np.zeros((2, 1, 3)), np.full((2, 1, 3), [1e308, -1e308, 0]), "further apart than float64 can say"),
        (np.zeros((2, 1, 3), np.int64), np.zeros((2, 1, 3)), "k_new: expected floats, got int64"),
    ],
)
def test_a_refused_append_changes_nothing(k, v, words):
    cache, _, _, _ = filled([6])
    before = [a.copy() for a in cache.append(np.zeros((2, 0, 3)), np.zeros((2, 0, 3)))]
    n_bytes = cache.n_bytes
    with pytest.raises(ValueError, match=words):
        cache.append(np.repeat(k, 2, axis=1), np.repeat(v, 2, axis=1))
    assert (len(cache), cache.n_bytes) == (6, n_bytes)
    for a, b in zip(before, cache.append(np.zeros((2, 0, 3)), np.zeros((2, 0, 3))), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.usefixtures("no_shape_hook")
def test_whole_numbers_are_refused_at_once_and_not_when_their_group_is_full():
    cache = QuantizedCache(2, 3, 4, 4)
    rows = np.arange(6).reshape(2, 1, 3)
    with pytest.raises(ValueError, match="k_new: expected floats, got int64"):
        cache.append(rows, rows)
    assert (len(cache), cache.n_bytes) == (0, 0)


@pytest.mark.parametrize("sizes", [(0, 3, 4, 4), (2, 0, 4, 4), (2, 3, 1, 4), (2, 3, 9, 4), (2, 3, 4, 0)])
def test_a_cache_of_no_size_is_refused(sizes):
    with pytest.raises(ValueError, match="expected a whole number"):
        QuantizedCache(*sizes)


def test_the_real_form_of_a_step_attention_over_it_is_close_to_the_full_pass():
    from kvlab.attention import attention

    q, k, v = normal(4, 40, 16), normal(2, 40, 16, seed=1), normal(2, 40, 16, seed=2)
    gaps = []
    for n_bits in (8, 4, 2):
        cache = QuantizedCache(2, 16, n_bits, residual=8)
        parts = [attention(q[:, a:b], *cache.append(k[:, a:b], v[:, a:b])) for a, b in ((0, 13), (13, 20), (20, 40))]
        gaps.append(np.abs(np.concatenate(parts, axis=1) - attention(q, k, v)).max())
    assert 0 < gaps[0] < 0.05 < gaps[1] < 1 and gaps[1] < gaps[2]
