"""kvlab.positions against transformers, against complex numbers, and against the numbers printed in the papers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlab.attention import attention_weights
from kvlab.positions import alibi_bias, alibi_slopes, rope_angles, rotate

POSITIONS = st.lists(st.integers(0, 4000), min_size=0, max_size=6)
HEAD_DIMS = st.sampled_from([2, 4, 6, 16])


def make_x(n_heads: int, n_tokens: int, head_dim: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n_heads, n_tokens, head_dim))


def rotate_complex(x: np.ndarray, positions: list[int], base: float) -> np.ndarray:
    """RoPE as the paper draws it: each pair is a complex number, multiplied by e^(i p f)."""
    half = x.shape[-1] // 2
    frequencies = np.array([base ** (-i / half) for i in range(half)])
    turn = np.exp(1j * np.array(positions, dtype=float)[:, None] * frequencies)
    turned = (x[..., :half] + 1j * x[..., half:]) * turn
    return np.concatenate([turned.real, turned.imag], axis=-1)


@given(positions=POSITIONS, head_dim=HEAD_DIMS, n_heads=st.integers(1, 3), base=st.sampled_from([500.0, 1e4, 1e5]))
@settings(deadline=None)
def test_rotate_is_a_product_with_unit_complex_numbers(positions, head_dim, n_heads, base):
    x = make_x(n_heads, len(positions), head_dim)
    ours = rotate(x, np.array(positions, dtype=np.int64), base)
    np.testing.assert_allclose(ours, rotate_complex(x, positions, base), rtol=0, atol=1e-11)


@pytest.mark.parametrize("base", [10000.0, 500000.0])
def test_rotate_equals_transformers_llama(base):
    torch = pytest.importorskip("torch", reason="the oracle is a torch library")
    transformers = pytest.importorskip("transformers", reason="the oracle is transformers' Llama")
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

    config = transformers.LlamaConfig(
        hidden_size=64, num_attention_heads=4, head_dim=16, rope_parameters={"rope_type": "default", "rope_theta": base}
    )
    positions = np.array([7, 0, 3, 90, 8])  # in no order
    x = make_x(4, 5, 16).astype(np.float32)
    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1), torch.from_numpy(positions)[None])
    theirs, _ = apply_rotary_pos_emb(torch.from_numpy(x)[None], torch.from_numpy(x)[None], cos, sin)
    np.testing.assert_allclose(rotate(x, positions, base), theirs[0].numpy(), rtol=0, atol=2e-5)


def test_rotate_frozen_values():
    """One token at position 1 with head_dim 4: pair (1, 3) turns by 1 radian, pair (2, 4) by 0.01. By hand."""
    x = np.array([[[1.0, 2.0, 3.0, 4.0]]])
    expected = [-1.984110648555550, 1.959900667496664, 2.462377902412316, 4.019799668334994]
    np.testing.assert_allclose(rotate(x, np.array([1])).ravel(), expected, rtol=0, atol=1e-12)


def test_rope_angles_frozen_values():
    np.testing.assert_allclose(rope_angles(np.array([3]), 8), [[3.0, 0.3, 0.03, 0.003]], rtol=1e-12)


@given(positions=POSITIONS, head_dim=HEAD_DIMS)
@settings(deadline=None)
def test_rotate_keeps_the_norm(positions, head_dim):
    x = make_x(2, len(positions), head_dim)
    turned = rotate(x, np.array(positions, dtype=np.int64))
    np.testing.assert_allclose(np.linalg.norm(turned, axis=-1), np.linalg.norm(x, axis=-1), rtol=1e-12)


@given(query=st.integers(0, 2000), key=st.integers(0, 2000), shift=st.integers(0, 2000), head_dim=HEAD_DIMS)
@settings(deadline=None)
def test_score_depends_on_the_difference_of_positions_alone(query, key, shift, head_dim):
    q, k = make_x(1, 1, head_dim, seed=1), make_x(1, 1, head_dim, seed=2)

    def score(at_query: int, at_key: int) -> float:
        return float((rotate(q, np.array([at_query])) * rotate(k, np.array([at_key]))).sum())

    assert abs(score(query, key) - score(query + shift, key + shift)) < 1e-10


def test_score_changes_with_the_difference():
    """The law above would hold for a rotation that does nothing."""
    q, k = make_x(1, 1, 8, seed=1), make_x(1, 1, 8, seed=2)
    scores = [float((rotate(q, np.array([p])) * k).sum()) for p in range(5)]
    assert min(abs(a - b) for i, a in enumerate(scores) for b in scores[:i]) > 1e-3


@given(order=st.permutations(range(5)))
@settings(deadline=None)
def test_rotate_treats_each_token_alone(order):
    """Any order of positions, each token turned by its own."""
    x, positions, order = make_x(2, 5, 8), np.array([4, 9, 0, 31, 2]), np.array(order)
    np.testing.assert_allclose(rotate(x[:, order], positions[order]), rotate(x, positions)[:, order], atol=1e-12)


@given(first=st.integers(-50, 50), second=st.integers(-50, 50))
@settings(deadline=None)
def test_two_rotations_add_up(first, second):
    """Also the way back: a key moved by -p + q stands at q."""
    x = make_x(2, 3, 8)
    p, q = np.full(3, first), np.full(3, second)
    np.testing.assert_allclose(rotate(rotate(x, p), q), rotate(x, p + q), atol=1e-12)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_rotate_keeps_the_dtype_and_its_input(dtype):
    x = make_x(2, 3, 8).astype(dtype)
    before = x.copy()
    turned = rotate(x, np.array([5, 6, 7]))
    assert turned.dtype == dtype
    assert not np.shares_memory(turned, x)
    np.testing.assert_array_equal(x, before)


def test_float32_angles_do_not_lose_digits_far_out():
    """The angle is computed in float64: at position 100,000 a float32 product would be off by 0.004 radians."""
    x = make_x(1, 1, 8)
    far = np.array([100_003])
    np.testing.assert_allclose(rotate(x.astype(np.float32), far), rotate(x, far), rtol=0, atol=1e-6)


def test_alibi_slopes_are_the_papers():
    """Press et al. 2022, section 3: 1/2, 1/4, ... 1/256 for 8 heads; from 2^-0.5 in steps of 2^-0.5 for 16."""
    assert alibi_slopes(8).tolist() == [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]
    np.testing.assert_allclose(alibi_slopes(16), [0.5 ** (0.5 * i) for i in range(1, 17)], rtol=1e-14)


def test_alibi_bias_frozen_values():
    """Two new tokens after two; slope 1/16 for the first of two heads, 1/256 for the second."""
    first = np.array([[-2, -1, 0, 1], [-3, -2, -1, 0]]) / 16
    np.testing.assert_array_equal(alibi_bias(2, 2, 4), np.stack([first, first / 16]))


@pytest.mark.parametrize(("n_new", "n_total"), [(1, 6), (3, 7), (5, 5)])
def test_alibi_weights_equal_transformers_bloom(n_new, n_total):
    """Bloom adds slope * key position; a row differs from ours by a constant, which softmax forgets."""
    torch = pytest.importorskip("torch", reason="the oracle is a torch library")
    bloom = pytest.importorskip("transformers.models.bloom.modeling_bloom", reason="the oracle is transformers' Bloom")
    q, k = make_x(4, n_new, 8, seed=1), make_x(4, n_total, 8, seed=2)
    theirs = bloom.build_alibi_tensor(torch.ones(1, n_total), 4, torch.float64).numpy()
    ours = attention_weights(q, k, bias=alibi_bias(4, n_new, n_total))
    wanted = attention_weights(q, k, bias=np.broadcast_to(theirs, (4, n_new, n_total)))
    np.testing.assert_allclose(ours, wanted, atol=1e-12)


@pytest.mark.usefixtures("no_shape_hook")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rotate(np.ones((2, 3)), np.arange(3)), r"x: expected shape .* got \(2, 3\)"),
        (lambda: rotate(np.ones((1, 3, 4)), np.arange(2)), r"positions: expected shape \(n_tokens=3,\), got \(2,\)"),
        (lambda: rotate(np.ones((1, 3, 5)), np.arange(3)), "head_dim must be even .* got 5"),
        (lambda: rotate(np.ones((1, 3, 4)), np.arange(3.0)), "positions: expected integers, got float64"),
        (lambda: rotate(np.ones((1, 3, 4)), [0, 1, 2]), "positions: expected an array .* got list"),
        (lambda: rotate(np.ones((1, 3, 4), int), np.arange(3)), "x: expected floats, got int"),
        (lambda: rotate(np.ones((1, 3, 4)), np.arange(3), base=0.0), "base must be positive, got 0.0"),
        (lambda: rope_angles(np.arange(3), 0), "head_dim: expected a whole number of at least 2, got 0"),
        (lambda: alibi_slopes(6), "n_heads must be a power of two, got 6"),
        (lambda: alibi_slopes(0), "n_heads: expected a whole number of at least 1, got 0"),
        (lambda: alibi_bias(2, 4, 3), "4 new tokens cannot be among 3 in all"),
        (lambda: alibi_bias(2, -1, 3), "n_new: expected a whole number of at least 0, got -1"),
    ],
)
def test_bad_input_is_refused_with_the_callers_numbers(call, message):
    with pytest.raises(ValueError, match=message):
        call()
