"""Windows, sinks, left padding and packed sequences: laws, frozen masks, other people's masks, bad input."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlab.attention import attention, offset_mask
from kvlab.decoder import TinyDecoder
from kvlab.masks import packed_mask, pad_positions, ragged_mask, visible, window_mask

COUNTS = st.tuples(st.integers(0, 9), st.integers(0, 9))
PADS = st.tuples(st.integers(0, 6), st.integers(1, 6))  # pads and tokens of one row
LENGTHS = st.lists(st.integers(0, 5), max_size=5)


def left_padded(*lengths, n=None):
    """The attention mask of a batch of these lengths, padded to n columns or to the longest."""
    n = max(lengths) if n is None else n
    return (np.arange(n)[None, :] >= n - np.array(lengths)[:, None]).astype(int)


@pytest.fixture(scope="module")
def theirs():
    """torch, and the functions from which transformers makes its masks."""
    torch = pytest.importorskip("torch", reason="the oracle is transformers, in torch")
    return torch, pytest.importorskip("transformers.masking_utils", reason="the oracle is transformers' masks")


# visible and window_mask


def test_a_window_of_three_frozen():
    assert window_mask(3, 7, window=3).astype(int).tolist() == [
        [0, 0, 1, 1, 1, 0, 0],
        [0, 0, 0, 1, 1, 1, 0],
        [0, 0, 0, 0, 1, 1, 1],
    ]


@given(counts=COUNTS, window=st.integers(1, 12))
def test_a_window_sees_the_last_tokens_up_to_itself(counts, window):
    n_past, n_new = counts
    mask = window_mask(n_new, n_past + n_new, window)
    assert mask.dtype == bool and mask.shape == (n_new, n_past + n_new)
    for i, row in enumerate(mask):
        at = n_past + i
        assert np.flatnonzero(row).tolist() == list(range(max(0, at - window + 1), at + 1))


@given(counts=COUNTS)
def test_a_window_over_everything_is_the_causal_mask(counts):
    n_past, n_new = counts
    n_total = n_past + n_new
    np.testing.assert_array_equal(window_mask(n_new, n_total, n_total + 1), offset_mask(n_new, n_total))


@given(counts=COUNTS, window=st.none() | st.integers(1, 6), n_sinks=st.integers(0, 4), order=st.randoms())
def test_visible_goes_by_positions_not_by_the_order_of_rows(counts, window, n_sinks, order):
    n_past, n_new = counts
    queries, keys = np.arange(n_past, n_past + n_new), np.arange(n_past + n_new)
    shuffled = list(range(len(keys)))
    order.shuffle(shuffled)
    mask = visible(queries, keys[shuffled], window, n_sinks)
    for i, j in np.ndindex(mask.shape):
        distance, key = queries[i] - keys[shuffled][j], keys[shuffled][j]
        assert mask[i, j] == (distance >= 0 and (window is None or distance < window or key < n_sinks))


def test_sinks_are_the_first_tokens_of_the_sequence_and_not_the_first_rows():
    """A ring of 3 rows and 2 sinks after 7 tokens, as a cache holds them: slot order is no time order."""
    mask = visible(np.array([6, 7]), np.array([0, 1, 6, 7, 5]), window=2, n_sinks=2)
    assert mask.astype(int).tolist() == [[1, 1, 1, 0, 1], [1, 1, 1, 1, 0]]


@pytest.mark.usefixtures("no_shape_hook")
@pytest.mark.parametrize("dtype", [np.uint8, np.uint64, np.int8])
def test_what_comes_later_stays_hidden_whatever_ints_the_positions_are(dtype):
    """0 - 2 is no large number of tokens ago."""
    queries, keys = np.array([0, 3], dtype), np.arange(5, dtype=dtype)
    assert visible(queries, keys).astype(int).tolist() == [[1, 0, 0, 0, 0], [1, 1, 1, 1, 0]]
    assert visible(queries, keys, window=2, n_sinks=1).astype(int).tolist() == [[1, 0, 0, 0, 0], [1, 0, 1, 1, 0]]


def test_a_sink_ahead_of_the_query_stays_hidden():
    assert visible(np.array([0, 1]), np.array([0, 1, 2]), window=1, n_sinks=3).astype(int).tolist() == [
        [1, 0, 0],
        [1, 1, 0],
    ]


@pytest.mark.parametrize("window", [1, 3, 20])
def test_windows_equal_those_of_transformers(theirs, window):
    torch, utils = theirs
    function = utils.sliding_window_causal_mask_function(window)
    mask = function(0, 0, torch.arange(5, 9)[:, None], torch.arange(9)[None, :])
    np.testing.assert_array_equal(window_mask(4, 9, window), mask.numpy())


# Left padding


def test_positions_frozen():
    given_mask = np.array([[0, 0, 0, 1, 1], [1, 1, 1, 1, 1], [0, 1, 1, 1, 1]])
    assert pad_positions(given_mask).tolist() == [[0, 0, 0, 0, 1], [0, 1, 2, 3, 4], [0, 0, 1, 2, 3]]


def test_ragged_mask_frozen():
    assert ragged_mask(np.array([[0, 0, 1, 1], [0, 1, 1, 1]]), n_new=3).astype(int).tolist() == [
        [[0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]],
        [[0, 1, 0, 0], [0, 1, 1, 0], [0, 1, 1, 1]],
    ]


@given(rows=st.lists(PADS, max_size=4))
def test_positions_count_the_tokens_of_each_row_from_0(rows):
    n = max((pads + tokens for pads, tokens in rows), default=3)
    mask = left_padded(*(tokens for _, tokens in rows), n=n)
    positions = pad_positions(mask)
    assert positions.shape == mask.shape and np.issubdtype(positions.dtype, np.integer)
    for row, (_, tokens) in zip(positions, rows, strict=True):
        assert row.tolist() == [0] * (n - tokens) + list(range(tokens))


@given(row=PADS, data=st.data())
def test_a_token_sees_its_own_row_up_to_itself_and_a_pad_only_itself(row, data):
    pads, tokens = row
    n = pads + tokens
    n_new = data.draw(st.integers(0, n))
    (mask,) = ragged_mask(left_padded(tokens, n=n), n_new)
    assert mask.dtype == bool and mask.shape == (n_new, n)
    for i, seen in enumerate(mask):
        at = n - n_new + i
        assert np.flatnonzero(seen).tolist() == (list(range(pads, at + 1)) if at >= pads else [at])


@given(counts=COUNTS.filter(any))
def test_without_pads_it_is_the_offset_mask_of_every_row(counts):
    n_past, n_new = counts
    mask = ragged_mask(np.ones((2, n_past + n_new), dtype=int), n_new)
    np.testing.assert_array_equal(mask, np.stack([offset_mask(n_new, n_past + n_new)] * 2))


@given(row=PADS, data=st.data())
def test_the_mask_of_a_chunk_is_the_end_of_the_whole_mask(row, data):
    pads, tokens = row
    mask = left_padded(tokens, tokens + pads)
    n_new = data.draw(st.integers(0, pads + tokens))
    whole = ragged_mask(mask, pads + tokens)
    np.testing.assert_array_equal(ragged_mask(mask, n_new), whole[:, pads + tokens - n_new :])


@given(lengths=st.lists(st.integers(1, 6), min_size=1, max_size=4), n_decoded=st.integers(0, 3))
def test_each_row_of_a_ragged_batch_is_the_same_row_alone(lengths, n_decoded):
    """Learned positions, so that wrong positions show; the prompt at once, then a token a step over the caches."""
    model, rng = TinyDecoder(positions="learned"), np.random.default_rng(sum(lengths))
    mask = left_padded(*(length + n_decoded for length in lengths))
    n = mask.shape[1]
    positions = pad_positions(mask)
    for row, real in enumerate(mask.astype(bool)):
        ids = np.where(real, rng.integers(1, 64, n), 0)
        caches, parts = model.make_caches(), []
        for start, end in [(0, n - n_decoded), *((t, t + 1) for t in range(n - n_decoded, n))]:
            seen = ragged_mask(mask[:, :end], end - start)[row]
            parts.append(model(ids[start:end], caches, positions=positions[row, start:end], mask=seen))
        logits = np.concatenate(parts)
        assert np.isfinite(logits).all()
        np.testing.assert_allclose(logits[real], model(ids[real]), rtol=0, atol=1e-12)


def test_left_padding_equals_that_of_transformers(theirs):
    torch, utils = theirs
    mask = left_padded(3, 7, 5)
    function = utils.and_masks(utils.padding_mask_function(torch.from_numpy(mask).bool()), utils.causal_mask_function)
    batch, queries, keys = torch.arange(3)[:, None, None], torch.arange(3, 7)[None, :, None], torch.arange(7)
    real = mask[:, 3:].astype(bool)  # a pad query is left with nothing to see there
    np.testing.assert_array_equal(ragged_mask(mask, 4)[real], function(batch, 0, queries, keys).numpy()[real])


# Packed sequences


def test_packed_frozen():
    assert packed_mask([2, 3]).astype(int).tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [0, 0, 1, 0, 0],
        [0, 0, 1, 1, 0],
        [0, 0, 1, 1, 1],
    ]


@given(lengths=LENGTHS)
def test_packed_is_causal_blocks_along_the_diagonal(lengths):
    mask = packed_mask(lengths)
    assert mask.dtype == bool and mask.shape == (sum(lengths), sum(lengths))
    assert mask.sum() == sum(n * (n + 1) // 2 for n in lengths)
    start = 0
    for n in lengths:
        np.testing.assert_array_equal(mask[start : start + n, start : start + n], offset_mask(n, n))
        start += n


def test_packed_equals_that_of_transformers(theirs):
    torch, utils = theirs
    lengths = [3, 1, 5]
    sequence = torch.repeat_interleave(torch.arange(3), torch.tensor(lengths))[None]
    function = utils.and_masks(utils.packed_sequence_mask_function(sequence), utils.causal_mask_function)
    mask = function(0, 0, torch.arange(9)[:, None], torch.arange(9)[None, :])
    np.testing.assert_array_equal(packed_mask(lengths), mask.numpy())


def test_lengths_may_be_an_array_and_an_empty_sequence_adds_nothing():
    np.testing.assert_array_equal(packed_mask(np.array([2, 0, 1])), packed_mask([2, 1]))
    assert packed_mask([]).shape == packed_mask([0]).shape == (0, 0)


@given(lengths=st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_a_packed_prefill_is_the_prefills_apart(lengths):
    model, rng = TinyDecoder(positions="learned"), np.random.default_rng(len(lengths))
    prompts = [rng.integers(0, 64, n) for n in lengths]
    positions = np.concatenate([np.arange(n) for n in lengths])
    logits = model(np.concatenate(prompts), positions=positions, mask=packed_mask(lengths))
    np.testing.assert_allclose(logits, np.concatenate([model(p) for p in prompts]), rtol=0, atol=1e-12)


# All of them in attention


@pytest.mark.parametrize(
    "mask",
    [window_mask(4, 7, 3), ragged_mask(left_padded(5, n=7), 4)[0], packed_mask([4, 3])[3:]],
    ids=["window", "left padding", "packed"],
)
def test_attention_under_a_mask_equals_torch_sdpa(mask):
    torch = pytest.importorskip("torch", reason="the oracle is torch's scaled_dot_product_attention")
    q, k, v = (np.random.default_rng(n).standard_normal((3, n, 8)) for n in (4, 7, 7))
    tensors = [torch.from_numpy(a)[None] for a in (q, k, v)]
    theirs = torch.nn.functional.scaled_dot_product_attention(*tensors, attn_mask=torch.from_numpy(mask))
    np.testing.assert_allclose(attention(q, k, v, mask), theirs[0].numpy(), rtol=0, atol=1e-12)


def test_inputs_stay_as_they_are():
    mask, lengths, at = left_padded(2, 4), np.array([2, 3]), np.arange(5)
    ragged_mask(mask, 2), pad_positions(mask), packed_mask(lengths), visible(at[3:], at, 2, 1)
    assert mask.tolist() == [[0, 0, 1, 1], [1, 1, 1, 1]]
    assert (lengths.tolist(), at.tolist()) == ([2, 3], [0, 1, 2, 3, 4])


# Bad input


@pytest.mark.usefixtures("no_shape_hook")
@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (np.array([0, 1, 1]), r"attention_mask: expected shape \(batch, n\), got \(3,\): 1 axes"),
        (np.array([[0, 1, 2]]), r"attention_mask: expected 1 for a token and 0 for a pad, got \[0, 1, 2\]"),
        (np.array([[0.0, -np.inf]]), r"attention_mask: expected 1 for a token and 0 for a pad, got \[-inf, 0.0\]"),
        (np.array([[0, 1], [1, 0]]), "attention_mask: row 1 has a pad after a token, expected pads on the left"),
        (np.array([[0, 1, 0, 1]]), "attention_mask: row 0 has a pad after a token"),
        (np.array([[0, 1], [0, 0]]), "attention_mask: row 1 of 2 columns has no token, expected at least one"),
        (np.zeros((1, 0), dtype=int), "attention_mask: row 0 of 0 columns has no token"),
    ],
)
def test_a_bad_attention_mask_is_refused(mask, message):
    for refuse in (pad_positions, lambda m: ragged_mask(m, 1)):
        with pytest.raises(ValueError, match=message):
            refuse(mask)


@pytest.mark.usefixtures("no_shape_hook")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ragged_mask(left_padded(2, 3), 4), "ragged_mask: 4 new tokens cannot be among 3 in all"),
        (lambda: ragged_mask(left_padded(2, 3), -1), "n_new: expected a whole number of at least 0, got -1"),
        (lambda: ragged_mask(left_padded(2, 3), 1.0), "n_new: expected a whole number of at least 0, got 1.0"),
        (lambda: packed_mask([2, -1]), r"lengths\[1\]: expected a whole number of at least 0, got -1"),
        (lambda: packed_mask([2.5]), r"lengths\[0\]: expected a whole number of at least 0, got 2.5"),
        (lambda: packed_mask(3), "lengths: expected a row of counts, got 3"),
        (lambda: packed_mask(np.array([[1, 2]])), r"lengths: expected a row of counts, got array\(\[\[1, 2\]\]\)"),
        (lambda: packed_mask([np.array([1])]), r"lengths: expected a row of counts, got \[array\(\[1\]\)\]"),
        (lambda: window_mask(3, 2, 1), "window_mask: 3 new tokens cannot be among 2 in all"),
        (lambda: window_mask(1, 2, 0), "window: expected a whole number of at least 1, got 0"),
        (lambda: window_mask(-1, 2, 1), "n_new: expected a whole number of at least 0, got -1"),
        (lambda: window_mask(0, -2, 1), "n_total: expected a whole number of at least 0, got -2"),
        (lambda: visible(np.arange(2), np.arange(3), 0), "window: expected a whole number of at least 1, got 0"),
        (lambda: visible(np.arange(2), np.arange(3), 2, -1), "n_sinks: expected a whole number of at least 0, got -1"),
        (lambda: visible(np.ones((1, 2)), np.arange(3)), r"query_positions: expected shape \(n_new,\), got \(1, 2\)"),
        (lambda: visible(np.array([1.5]), np.arange(3)), "query_positions: expected integers, got float64"),
        (lambda: visible(np.arange(2), np.ones((1, 3))), r"key_positions: expected shape \(n_rows,\), got \(1, 3\)"),
    ],
)
def test_bad_counts_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
