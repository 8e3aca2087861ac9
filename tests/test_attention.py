"""kvlab.attention against hand-worked fractions, plain Python loops, torch's SDPA, and the laws it must obey."""

import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvlab.attention import attention, attention_weights, merge_heads, offset_mask, repeat_kv, softmax, split_heads

seeds = st.integers(0, 2**32 - 1)


@st.composite
def problems(draw: st.DrawFn, dtype: type = np.float64) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """q, k, v of random sizes: several queries over a past, shared KV heads, a v_dim of its own."""
    n_kv_heads, group, n_new, n_past = (draw(st.integers(low, 4)) for low in (1, 1, 1, 0))
    head_dim, v_dim = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    rng = np.random.default_rng(draw(seeds))
    q = rng.standard_normal((n_kv_heads * group, n_new, head_dim)).astype(dtype)
    k = rng.standard_normal((n_kv_heads, n_past + n_new, head_dim)).astype(dtype)
    v = rng.standard_normal((n_kv_heads, n_past + n_new, v_dim)).astype(dtype)
    return q, k, v


def attention_by_loops(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Offset-causal attention with shared KV heads, from the definition: Python floats, no broadcasting, no mask."""
    (n_heads, n_new, head_dim), (n_kv_heads, n_total, v_dim) = q.shape, v.shape
    out = np.zeros((n_heads, n_new, v_dim))
    for h in range(n_heads):
        kv = h // (n_heads // n_kv_heads)
        for i in range(n_new):
            visible = range(n_total - n_new + i + 1)
            scores = [sum(float(a) * float(b) for a, b in zip(q[h, i], k[kv, j], strict=True)) for j in visible]
            exps = [math.exp(s / math.sqrt(head_dim)) for s in scores]
            for d in range(v_dim):
                out[h, i, d] = sum(e * float(v[kv, j, d]) for j, e in enumerate(exps)) / sum(exps)
    return out


# softmax


def test_softmax_of_logarithms_gives_exact_fractions() -> None:
    """exp(ln a) = a, so the scores ln 1, ln 2, ln 5 have the weights 1/8, 2/8, 5/8."""
    weights = softmax(np.log(np.array([[1.0, 2.0, 5.0], [3.0, 3.0, 6.0]])))
    np.testing.assert_allclose(weights, [[1 / 8, 2 / 8, 5 / 8], [1 / 4, 1 / 4, 1 / 2]], rtol=1e-15)


@given(seeds, st.floats(-1e6, 1e6))
def test_softmax_rows_sum_to_one_and_a_shift_changes_nothing(seed: int, shift: float) -> None:
    x = np.random.default_rng(seed).standard_normal((3, 4, 5))
    weights = softmax(x)
    np.testing.assert_allclose(weights.sum(axis=-1), 1, rtol=1e-14)
    assert (weights > 0).all()
    np.testing.assert_allclose(softmax(x + shift), weights, rtol=1e-8)  # x + 1e6 has lost six digits of x


def test_softmax_is_stable_row_by_row_and_warns_of_nothing() -> None:
    """Scores of 1,000 overflow exp; a row 2,000 below the largest underflows if the array's maximum is subtracted."""
    x = np.array([[1000.0, 999.0], [-1000.0, -1001.0], [0.0, -1.0]])
    e = math.exp(-1)
    np.testing.assert_allclose(softmax(x), [[1 / (1 + e), e / (1 + e)]] * 3, rtol=1e-14)


def test_softmax_hides_minus_infinity_exactly() -> None:
    assert softmax(np.array([3.0, -np.inf, 3.0])).tolist() == [0.5, 0.0, 0.5]


def test_softmax_does_not_change_its_input() -> None:
    x = np.arange(6.0).reshape(2, 3)
    before = x.copy()
    softmax(x)
    np.testing.assert_array_equal(x, before)


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (np.array(1.0), r"got \(\)"),
        (np.zeros((2, 0)), r"got \(2, 0\)"),
        (np.array([[0.0, 1.0], [-np.inf, -np.inf]]), r"shape \(2, 2\) is all -inf"),
    ],
)
def test_softmax_refuses_what_has_no_answer(no_shape_hook: None, x: np.ndarray, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        softmax(x)


# the mask


@given(st.integers(0, 6), st.integers(0, 6))
def test_offset_mask_by_positions(n_new: int, n_past: int) -> None:
    """Query i stands at n_past + i and sees the keys up to there, itself included."""
    mask = offset_mask(n_new, n_past + n_new)
    assert mask.shape == (n_new, n_past + n_new)
    assert mask.dtype == bool
    for i in range(n_new):
        assert np.flatnonzero(mask[i]).tolist() == list(range(n_past + i + 1))


def test_offset_mask_of_a_chunk_is_frozen() -> None:
    """The first of three queries after four cached tokens sees five keys, not one."""
    assert offset_mask(3, 7).astype(int).tolist() == [[1, 1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1, 0], [1] * 7]


@pytest.mark.parametrize(("n_new", "n_total"), [(-1, 3), (2, -1), (4, 3), (True, 3), (1.0, 3)])
def test_offset_mask_refuses_impossible_counts(no_shape_hook: None, n_new: int, n_total: int) -> None:
    with pytest.raises(ValueError, match=f"{n_new if n_total == 3 else n_total}"):
        offset_mask(n_new, n_total)


# heads


def test_split_heads_gives_each_head_its_own_columns_of_every_token() -> None:
    x = np.array([[10 * token + column for column in range(6)] for token in range(4)])
    heads = split_heads(x.astype(float), 3)
    assert heads.shape == (3, 4, 2)
    for h in range(3):
        np.testing.assert_array_equal(heads[h], x[:, 2 * h : 2 * h + 2])


@given(st.integers(1, 4), st.integers(0, 5), st.integers(1, 3), seeds)
def test_merge_heads_undoes_split_heads(n_heads: int, n_tokens: int, head_dim: int, seed: int) -> None:
    x = np.random.default_rng(seed).standard_normal((n_tokens, n_heads * head_dim))
    np.testing.assert_array_equal(merge_heads(split_heads(x, n_heads)), x)


@pytest.mark.parametrize("n_heads", [0, 4])
def test_split_heads_refuses_a_width_that_does_not_divide(no_shape_hook: None, n_heads: int) -> None:
    with pytest.raises(ValueError, match=f"width of 6 does not divide into {n_heads} heads"):
        split_heads(np.zeros((2, 6)), n_heads)


def test_repeat_kv_keeps_the_copies_of_a_head_together() -> None:
    x = np.arange(2.0).reshape(2, 1, 1)
    assert repeat_kv(x, 6).ravel().tolist() == [0, 0, 0, 1, 1, 1]
    with pytest.raises(ValueError, match="5 query heads and 2 KV heads"):
        repeat_kv(x, 5)


# attention


def test_attention_worked_by_hand_in_fractions() -> None:
    """head_dim 4, so scores are divided by 2; keys chosen so that the exps of the last query are 1, 2 and 5.

    q = (2, 0, 0, 0) and k_j = (ln a_j, ...) give the scores ln a_j with a = 1, 2, 5. The query at position 2 weighs the
    values 8, 16, 24 by 1/8, 2/8, 5/8: 1 + 4 + 15 = 20. The one at position 1 sees two keys: (8 + 2 * 16) / 3 = 40/3.
    """
    q = np.zeros((1, 2, 4))
    q[..., 0] = 2
    k = np.zeros((1, 3, 4))
    k[0, :, 0] = np.log([1, 2, 5])
    k[0, :, 1] = [7, 8, 9]  # meets a zero of q: no part of any score
    v = np.array([[[8.0], [16.0], [24.0]]])
    np.testing.assert_allclose(attention_weights(q, k)[0], [[1 / 3, 2 / 3, 0], [1 / 8, 2 / 8, 5 / 8]], rtol=1e-15)
    np.testing.assert_allclose(attention(q, k, v)[0], [[40 / 3], [20]], rtol=1e-15)


@given(problems())
def test_attention_equals_plain_loops(problem: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    np.testing.assert_allclose(attention(*problem), attention_by_loops(*problem), rtol=1e-11, atol=1e-13)


@given(problems())
def test_attention_equals_torch_sdpa_with_the_explicit_mask(
    problem: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> None:
    """torch's own is_causal hangs from the top left, so the mask is given; its KV heads are repeated by torch."""
    q, k, v = (torch.from_numpy(a) for a in problem)
    group, n_new, n_total = len(q) // len(k), q.shape[1], k.shape[1]
    mask = torch.ones(n_new, n_total, dtype=torch.bool).tril(diagonal=n_total - n_new)
    k, v = k.repeat_interleave(group, dim=0), v.repeat_interleave(group, dim=0)
    theirs = torch.nn.functional.scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=mask)[0]
    np.testing.assert_allclose(attention(*problem), theirs.numpy(), rtol=1e-10, atol=1e-12)


@given(problems(np.float32))
def test_float32_stays_float32(problem: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    out = attention(*problem)
    assert out.dtype == attention_weights(*problem[:2]).dtype == np.float32
    np.testing.assert_allclose(out, attention(*(a.astype(np.float64) for a in problem)), atol=1e-5)


@given(problems(), seeds)
def test_later_keys_and_values_change_no_earlier_output(
    problem: tuple[np.ndarray, np.ndarray, np.ndarray], seed: int
) -> None:
    """The law that a cache rests on: output i is untouched by keys and values after its position."""
    q, k, v = problem
    n_new, n_total = q.shape[1], k.shape[1]
    other = np.random.default_rng(seed)
    full = attention(q, k, v)
    for i in range(n_new - 1):
        seen = n_total - n_new + i + 1
        k2, v2 = k.copy(), v.copy()
        k2[:, seen:] = other.standard_normal(k2[:, seen:].shape)
        v2[:, seen:] = 1e6
        changed = attention(q, k2, v2)
        np.testing.assert_array_equal(changed[:, : i + 1], full[:, : i + 1])


@given(problems())
def test_one_query_at_a_time_equals_all_at_once(problem: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    q, k, v = problem
    n_new, n_total = q.shape[1], k.shape[1]
    ends = [n_total - n_new + i + 1 for i in range(n_new)]
    steps = [attention(q[:, i : i + 1], k[:, :end], v[:, :end]) for i, end in enumerate(ends)]
    np.testing.assert_allclose(np.concatenate(steps, axis=1), attention(q, k, v), atol=1e-12)


@given(problems())
def test_a_full_mask_is_attention_without_one_and_order_of_keys_is_free(
    problem: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> None:
    q, k, v = problem
    everything = np.ones((q.shape[1], k.shape[1]), dtype=bool)
    backwards = attention(q, k[:, ::-1], v[:, ::-1], mask=everything)
    np.testing.assert_allclose(attention(q, k, v, mask=everything), backwards, atol=1e-12)


def test_a_bias_of_logarithms_multiplies_the_weights() -> None:
    """Equal keys give equal weights; a bias of ln 1, ln 3 makes them 1/4 and 3/4. The mask hides a biased entry too."""
    q, k = np.ones((2, 1, 3)), np.ones((1, 2, 3))
    bias = np.broadcast_to(np.log([1.0, 3.0]), (2, 1, 2))
    np.testing.assert_allclose(attention_weights(q, k, bias=bias), np.broadcast_to([0.25, 0.75], (2, 1, 2)))
    first_only = np.array([[True, False]])
    np.testing.assert_array_equal(attention_weights(q, k, first_only, bias), np.broadcast_to([1.0, 0.0], (2, 1, 2)))


@pytest.mark.parametrize("n_total", [0, 5])
def test_an_empty_chunk_has_an_empty_answer(n_total: int) -> None:
    q, k, v = np.zeros((4, 0, 3)), np.zeros((2, n_total, 3)), np.zeros((2, n_total, 6))
    assert attention(q, k, v).shape == (4, 0, 6)


def test_scores_of_a_thousand_give_no_warning_and_no_nan() -> None:
    q = np.full((1, 2, 4), 40.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out = attention(q, q, np.arange(2.0).reshape(1, 2, 1))
    np.testing.assert_array_equal(out[0], [[0.0], [0.5]])


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        (((4, 2, 8), (2, 5, 6), (2, 5, 8)), r"k: .*head_dim=8.*got \(2, 5, 6\): head_dim is 6"),
        (((4, 2, 8), (3, 5, 8), (3, 5, 8)), "4 query heads and 3 KV heads"),
        (((4, 6, 8), (2, 5, 8), (2, 5, 8)), "6 new tokens cannot be among 5"),
        (((4, 2, 8), (2, 5, 8), (2, 4, 8)), r"v: .*n_total=5.*got \(2, 4, 8\)"),
        (((4, 2, 8), (2, 5, 8), (1, 5, 8)), r"v: .*n_kv_heads=2.*got \(1, 5, 8\)"),
        (((2, 8), (2, 5, 8), (2, 5, 8)), r"q: .*got \(2, 8\): 2 axes"),
    ],
)
def test_attention_refuses_shapes_that_do_not_fit(no_shape_hook: None, shapes: tuple, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        attention(*map(np.zeros, shapes))


def test_attention_refuses_masks_and_biases_that_do_not_fit(no_shape_hook: None) -> None:
    q, k = np.zeros((4, 2, 8)), np.zeros((2, 5, 8))
    with pytest.raises(ValueError, match=r"mask: .*n_total=5.*got \(2, 2\)"):
        attention(q, k, k, mask=np.ones((2, 2), dtype=bool))
    with pytest.raises(ValueError, match=r"bias: .*n_heads=4.*got \(2, 2, 5\)"):
        attention(q, k, k, bias=np.zeros((2, 2, 5)))
    with pytest.raises(ValueError, match="all -inf"):
        attention(q, k, k, mask=np.zeros((2, 5), dtype=bool))
