"""Sharing KV heads: lesson 04's functions and the package's attention, against routes that share nothing with them."""

import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lesson_source import definitions

from kvlab.attention import attention, repeat_kv

LESSON = definitions("04_grouped_queries")
BOTH = pytest.mark.parametrize("attend", [LESSON["grouped_attention"], attention], ids=["lesson", "package"])
REPEATS = pytest.mark.parametrize("repeat", [LESSON["repeat_kv"], repeat_kv], ids=["lesson", "package"])
pool_kv_heads = LESSON["pool_kv_heads"]

Arrays = tuple[np.ndarray, np.ndarray, np.ndarray]
Attend = Callable[..., np.ndarray]


def qkv(seed: int, group: int, n_kv_heads: int, n_new: int, n_past: int, head_dim: int) -> Arrays:
    rng = np.random.default_rng(seed)
    q = rng.standard_normal((group * n_kv_heads, n_new, head_dim))
    k, v = rng.standard_normal((2, n_kv_heads, n_past + n_new, head_dim))
    return q, k, v


def by_hand(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Plain Python sums, one number at a time, no head repeated, no softmax or mask of ours."""
    (n_heads, n_new, head_dim), (n_kv_heads, n_total, _) = q.shape, k.shape
    out = np.zeros(q.shape)
    for h in range(n_heads):
        shared = h * n_kv_heads // n_heads
        for i in range(n_new):
            seen = range(n_total - n_new + i + 1)
            weights = [np.exp(sum(q[h, i] * k[shared, j]) / head_dim**0.5) for j in seen]
            out[h, i] = sum(w * v[shared, j] for w, j in zip(weights, seen, strict=True)) / sum(weights)
    return out


# Attention


@BOTH
def test_frozen_output(attend: Attend) -> None:
    """Computed once with torch.nn.functional.scaled_dot_product_attention(enable_gqa=True) in float64."""
    q = np.arange(8.0).reshape(4, 1, 2) / 4
    k = np.array([[[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], [[0.0, 2.0], [2.0, 0.0], [-1.0, 1.0]]])
    v = np.array([[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], [[10.0, 20.0], [30.0, 40.0], [50.0, 60.0]]])
    frozen = [3.1141895737, 3.3593725922, 21.6441460813, 20.0196264745]
    np.testing.assert_allclose(attend(q, k, v)[:, 0, 0], frozen, atol=1e-9)


@BOTH
@given(
    seed=st.integers(0, 2**16),
    group=st.integers(1, 4),
    n_kv_heads=st.integers(1, 4),
    n_new=st.integers(1, 4),
    n_past=st.integers(0, 4),
    head_dim=st.integers(1, 5),
)
def test_grouped_attention_by_hand_and_by_torch(
    attend: Attend, seed: int, group: int, n_kv_heads: int, n_new: int, n_past: int, head_dim: int
) -> None:
    q, k, v = qkv(seed, group, n_kv_heads, n_new, n_past, head_dim)
    out = attend(q, k, v)
    np.testing.assert_allclose(out, by_hand(q, k, v), atol=1e-9)
    mask = torch.ones(n_new, n_past + n_new, dtype=torch.bool).tril(diagonal=n_past)
    tensors = (torch.from_numpy(a)[None] for a in (q, k, v))
    sdpa = torch.nn.functional.scaled_dot_product_attention(*tensors, attn_mask=mask, enable_gqa=True)
    np.testing.assert_allclose(out, sdpa[0].numpy(), atol=1e-9)


@BOTH
def test_constant_values_name_the_head_that_was_read(attend: Attend) -> None:
    """A weighted mean of tens is ten, whatever the weights: no reference needed, and the tiled order fails."""
    q, k, _ = qkv(seed=1, group=4, n_kv_heads=2, n_new=3, n_past=4, head_dim=5)
    v = np.broadcast_to(np.array([10.0, 20.0])[:, None, None], k.shape)
    np.testing.assert_allclose(attend(q, k, v)[:, 0, 0], [10, 10, 10, 10, 20, 20, 20, 20])


@BOTH
def test_one_key_that_stands_out_names_the_head_whose_keys_were_read(attend: Attend) -> None:
    """Each KV head points at another token, and the values tell the tokens apart: keys are checked on their own."""
    k = np.zeros((2, 3, 4))
    k[0, 0], k[1, 2] = 100, 100
    v = np.broadcast_to(np.array([1.0, 2.0, 3.0])[None, :, None], k.shape)
    out = attend(np.ones((6, 1, 4)), k, v)
    np.testing.assert_allclose(out[:, 0, 0], [1, 1, 1, 3, 3, 3])


@BOTH
def test_empty_chunk_and_dtype_and_inputs(attend: Attend) -> None:
    q, k, v = qkv(seed=2, group=3, n_kv_heads=2, n_new=4, n_past=1, head_dim=5)
    assert attend(q[:, :0], k, v).shape == (6, 0, 5)
    before = [a.copy() for a in (q, k, v)]
    narrow = [a.astype(np.float32) for a in (q, k, v)]
    out = attend(*narrow)
    assert out.dtype == np.float32
    np.testing.assert_allclose(out, attend(q, k, v), atol=1e-4)
    for a, b in zip((q, k, v), before, strict=True):
        np.testing.assert_array_equal(a, b)


@BOTH
def test_keys_and_values_are_not_copied(attend: Attend) -> None:
    """The most that a decode step holds besides its inputs is less than one k; repeated heads would be 8 times k."""
    q, k, v = qkv(seed=3, group=8, n_kv_heads=2, n_new=1, n_past=2047, head_dim=64)
    tracemalloc.start()
    try:
        attend(q, k, v)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < k.nbytes


@BOTH
@pytest.mark.usefixtures("no_shape_hook")
def test_uneven_heads_are_refused(attend: Attend) -> None:
    with pytest.raises(ValueError, match=r"5 query heads.* 2 KV heads"):
        attend(np.ones((5, 1, 4)), np.ones((2, 3, 4)), np.ones((2, 3, 4)))


# Repeating


@REPEATS
def test_order_of_repeated_heads(repeat: Callable[[np.ndarray, int], np.ndarray]) -> None:
    x = np.array([1.0, 2.0, 3.0]).reshape(3, 1, 1) * np.ones((3, 5, 2))
    out = repeat(x, 6)
    assert out.shape == (6, 5, 2)
    np.testing.assert_array_equal(out[:, 0, 0], [1, 1, 2, 2, 3, 3])
    torches = torch.repeat_interleave(torch.from_numpy(x), 2, dim=0)
    np.testing.assert_array_equal(out, torches.numpy())
    np.testing.assert_array_equal(repeat(x, 3), x)


@REPEATS
@pytest.mark.parametrize("n_heads", [1, 2, 4, 7])
@pytest.mark.usefixtures("no_shape_hook")
def test_repeat_refuses_what_does_not_divide(repeat: Callable[[np.ndarray, int], np.ndarray], n_heads: int) -> None:
    with pytest.raises(ValueError, match=f"{n_heads} query heads.* 3 KV heads"):
        repeat(np.ones((3, 5, 2)), n_heads)


# Pooling


@given(d_model=st.integers(1, 5), n_kv_heads=st.integers(1, 3), group=st.integers(1, 4), head_dim=st.integers(1, 4))
def test_pooling_is_the_mean_of_neighbours(d_model: int, n_kv_heads: int, group: int, head_dim: int) -> None:
    n_heads = group * n_kv_heads
    w = np.random.default_rng(d_model).standard_normal((d_model, n_heads * head_dim))
    pooled = pool_kv_heads(w, n_heads, n_kv_heads)
    assert pooled.shape == (d_model, n_kv_heads * head_dim)
    for g in range(n_kv_heads):
        for c in range(head_dim):
            columns = [w[:, (g * group + i) * head_dim + c] for i in range(group)]
            np.testing.assert_allclose(pooled[:, g * head_dim + c], sum(columns) / group, atol=1e-12)


def test_frozen_pooling() -> None:
    w = np.array([[0.0, 1, 2, 3, 4, 5, 6, 7]])  # four heads, two wide: [0 1] [2 3] [4 5] [6 7]
    np.testing.assert_array_equal(pool_kv_heads(w, 4, 2), [[1, 2, 5, 6]])
    np.testing.assert_array_equal(pool_kv_heads(w, 4, 1), [[3, 4]])
    np.testing.assert_array_equal(pool_kv_heads(w, 4, 4), w)


def test_pooling_equal_heads_changes_no_output() -> None:
    """Heads equal inside each group: MHA and the pooled GQA are the same function."""
    rng = np.random.default_rng(5)
    x, wq = rng.standard_normal((6, 7)), rng.standard_normal((7, 8 * 3))
    two = rng.standard_normal((2, 7, 2, 3))
    wk, wv = np.repeat(two, 4, axis=2).reshape(2, 7, 8 * 3)

    def output(wk: np.ndarray, wv: np.ndarray) -> np.ndarray:
        return LESSON["grouped_attention"](*((x @ w).reshape(6, -1, 3).transpose(1, 0, 2) for w in (wq, wk, wv)))

    pooled = output(pool_kv_heads(wk, 8, 2), pool_kv_heads(wv, 8, 2))
    np.testing.assert_allclose(pooled, output(wk, wv), atol=1e-9)


@pytest.mark.parametrize("n_kv_heads", [3, 5, 16])
def test_pooling_refuses_uneven_groups(n_kv_heads: int) -> None:
    with pytest.raises(ValueError, match=f"8 heads do not divide into {n_kv_heads} groups"):
        pool_kv_heads(np.ones((4, 16)), 8, n_kv_heads)
