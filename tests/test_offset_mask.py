"""The offset mask against torch, against the square mask, and in the case that decides: a chunk over a filled cache."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlab.attention import attention, offset_mask
from kvlab.caches import StaticCache
from kvlab.decoder import TinyDecoder

COUNTS = st.tuples(st.integers(0, 9), st.integers(0, 9))


@given(counts=COUNTS)
def test_mask_is_the_last_rows_of_the_square_mask(counts):
    n_past, n_new = counts
    n_total = n_past + n_new
    square = np.tril(np.ones((n_total, n_total), dtype=bool))
    mask = offset_mask(n_new, n_total)
    assert mask.dtype == bool
    np.testing.assert_array_equal(mask, square[n_past:])


@given(counts=COUNTS)
def test_query_i_sees_past_plus_i_plus_one_keys(counts):
    n_past, n_new = counts
    seen = offset_mask(n_new, n_past + n_new).sum(axis=1)
    assert seen.tolist() == [n_past + i + 1 for i in range(n_new)]


def test_three_new_after_four_frozen():
    assert offset_mask(3, 7).astype(int).tolist() == [
        [1, 1, 1, 1, 1, 0, 0],
        [1, 1, 1, 1, 1, 1, 0],
        [1, 1, 1, 1, 1, 1, 1],
    ]


@pytest.mark.parametrize(("n_new", "n_total"), [(1, 8), (3, 7), (5, 5), (2, 9)])
def test_attention_equals_torch_sdpa_with_an_explicit_mask(n_new, n_total):
    """Two masks that are not ours: the lower rows of torch's square triangle, and torch's own lower-right bias."""
    torch = pytest.importorskip("torch", reason="the oracle is torch's scaled_dot_product_attention")
    from torch.nn.attention.bias import causal_lower_right

    rng = np.random.default_rng(n_new)
    q, k, v = (rng.standard_normal((3, n, 8)) for n in (n_new, n_total, n_total))
    ours = attention(q, k, v)
    tensors = [torch.from_numpy(a)[None] for a in (q, k, v)]
    for mask in (torch.ones(n_total, n_total, dtype=torch.bool).tril()[-n_new:], causal_lower_right(n_new, n_total)):
        theirs = torch.nn.functional.scaled_dot_product_attention(*tensors, attn_mask=mask)
        np.testing.assert_allclose(ours, theirs[0].numpy(), rtol=0, atol=1e-12)


@given(
    chunks=st.lists(st.integers(0, 5), min_size=1, max_size=5), positions=st.sampled_from(["rope", "learned", "alibi"])
)
@settings(deadline=None, max_examples=30)
def test_any_chunking_equals_the_full_pass(chunks, positions):
    """Prefill, chunked prefill, decode steps and empty chunks are the same call: over a growing and a fixed buffer."""
    model = TinyDecoder(positions=positions)
    c = model.config
    ids = np.random.default_rng(len(chunks)).integers(0, c.vocab_size, sum(chunks))
    full = model(ids)
    for make in (None, lambda: StaticCache(c.n_kv_heads, 32, c.head_dim)):
        caches = model.make_caches(make)
        parts = [model(part, caches) for part in np.split(ids, np.cumsum(chunks)[:-1])]
        np.testing.assert_allclose(np.concatenate(parts), full, rtol=0, atol=1e-12)


def test_a_chunk_tells_masks_apart_that_one_token_cannot():
    """Why the tests above use chunks: over a cache, one query is right even with no mask at all."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((2, n, 8)) for n in (3, 7, 7))
    one, chunk = q[:, -1:], q
    everything = np.ones((3, 7), dtype=bool)
    np.testing.assert_allclose(attention(one, k, v, everything[:1]), attention(one, k, v), rtol=0, atol=1e-12)
    assert np.abs(attention(chunk, k, v, everything) - attention(chunk, k, v)).max() > 1e-2


@pytest.mark.usefixtures("no_shape_hook")
@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ((4, 3), "4 new tokens cannot be among 3 in all: pass past \\+ new"),
        ((-1, 3), "n_new: expected a whole number of at least 0, got -1"),
        ((1, 2.5), "n_total: expected a whole number of at least 0, got 2.5"),
    ],
)
def test_bad_counts_are_refused(counts, message):
    with pytest.raises(ValueError, match=message):
        offset_mask(*counts)


@pytest.mark.usefixtures("no_shape_hook")
def test_a_square_mask_over_a_filled_cache_is_refused_by_name():
    q, k = np.ones((2, 3, 8)), np.ones((2, 7, 8))
    with pytest.raises(ValueError, match=r"mask: expected shape \(n_new=3, n_total=7\), got \(3, 3\)"):
        attention(q, k, k, np.tril(np.ones((3, 3), dtype=bool)))
