"""Beam search equals a search written with lists, exhaustive search, itself through blocks, and transformers."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlab.beams import beam_search, copied_step, log_softmax, paged_step, reorder_cache, reorder_tables
from kvlab.caches import BlockPool, PagedCache
from kvlab.decoder import TinyDecoder, generate

PROMPT = np.array([3, 1, 4, 1, 5])


def table_step(log_probs_of, vocab):
    """A model without weights, whose log-probabilities are a function of the text; its cache is the text."""

    def step(tokens, cache):
        text = tokens if cache is None else np.concatenate([cache[0][0][:, 0, :, 0].astype(int), tokens], axis=1)
        pair = text[:, None, :, None].astype(float)
        return np.array([[log_probs_of((*row, i)) for i in range(vocab)] for row in text.tolist()]), [(pair, -pair)]

    return step


def scores_of(seed, ties):
    """A log-probability for every text: with `ties` few different ones, so that equal sums are common."""

    def log_probs_of(text):
        x = float(np.random.default_rng([seed, *text]).random())
        return -float(int(3 * x)) if ties else float(np.log(x))

    return log_probs_of


def searched_with_lists(log_probs_of, vocab, prompt, n_beams, n_new):
    """The definition, with no array and no cache: extend every text by every token, sort, keep the best."""
    beams = [(0.0, ())]
    for _ in range(n_new):
        longer = [
            (-(score + log_probs_of((*prompt, *text, i))), rank, i, (*text, i))
            for rank, (score, text) in enumerate(beams)
            for i in range(vocab)
        ]
        beams = [(-cost, text) for cost, _, _, text in sorted(longer)[:n_beams]]
    return [list(text) for _, text in beams], [score for score, _ in beams]


@given(
    vocab=st.integers(2, 5),
    n_beams=st.integers(1, 6),
    n_new=st.integers(1, 4),
    seed=st.integers(0, 99),
    ties=st.booleans(),
)
def test_equals_a_search_with_lists(vocab, n_beams, n_new, seed, ties):
    n_beams = min(n_beams, vocab**n_new)
    log_probs_of = scores_of(seed, ties)
    tokens, scores = beam_search(table_step(log_probs_of, vocab), np.array([1, 0]), n_beams, n_new)
    texts, expected = searched_with_lists(log_probs_of, vocab, (1, 0), n_beams, n_new)
    assert tokens.tolist() == texts
    np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("n_beams", [9, 14, 27])
def test_wide_beams_find_what_exhaustive_search_finds(n_beams):
    """With vocab ** (n_new - 1) beams nothing is dropped before the last step."""
    log_probs_of = scores_of(5, ties=False)
    every = {text: sum(log_probs_of((2, *text[: i + 1])) for i in range(3)) for text in product(range(3), repeat=3)}
    best = sorted(every, key=lambda text: -every[text])[:n_beams]
    tokens, scores = beam_search(table_step(log_probs_of, 3), np.array([2]), n_beams, 3)
    assert tokens.tolist() == [list(text) for text in best]
    np.testing.assert_allclose(scores, [every[text] for text in best], rtol=0, atol=1e-12)
    _, lower = beam_search(table_step(log_probs_of, 3), np.array([2]), 1, 3)
    assert lower[0] < scores[0]  # so that the test above could fail


@pytest.mark.parametrize("positions", ["rope", "learned", "alibi"])
def test_one_beam_is_greedy(positions):
    model = TinyDecoder(positions=positions)
    tokens, scores = beam_search(copied_step(model), PROMPT, 1, 9)
    reply = generate(model, PROMPT, 9)
    np.testing.assert_array_equal(tokens[0], reply[5:])
    log_probs = log_softmax(model(reply[:-1]))[np.arange(4, 13), reply[5:]]
    np.testing.assert_allclose(scores, [log_probs.sum()], rtol=0, atol=1e-12)


def recomputing(model):
    """A step that keeps the text and no row; its cache is reordered by indexing the texts."""

    def step(tokens, text):
        text = tokens if text is None else np.concatenate([text, tokens], axis=1)
        return np.stack([log_softmax(model(row)[-1]) for row in text]), text

    return step


@settings(max_examples=15)
@given(
    positions=st.sampled_from(["rope", "learned", "alibi"]),
    prompt=st.lists(st.integers(0, 63), min_size=1, max_size=9),
    n_beams=st.integers(1, 5),
    n_new=st.integers(1, 7),
    block_size=st.integers(1, 5),
)
def test_copies_and_block_tables_equal_recomputing(positions, prompt, n_beams, n_new, block_size):
    model, prompt = TinyDecoder(positions=positions), np.array(prompt)
    expected, best = beam_search(recomputing(model), prompt, n_beams, n_new, lambda text, index: text[index])
    pools = [BlockPool(80, block_size, 2, 8) for _ in range(2)]
    copied = beam_search(copied_step(model), prompt, n_beams, n_new)
    paged = beam_search(paged_step(model, pools), prompt, n_beams, n_new, reorder_tables)
    for tokens, scores in (copied, paged):
        np.testing.assert_array_equal(tokens, expected)
        np.testing.assert_allclose(scores, best, rtol=0, atol=1e-9)
    assert [pool.n_free for pool in pools] == [80, 80]


def test_a_cache_that_is_not_reordered_gives_other_beams():
    """Were it not so, no test here could see a reorder that does nothing."""
    model = TinyDecoder()
    expected, _ = beam_search(copied_step(model), PROMPT, 4, 12)

    def stay(cache, index):
        rows = np.arange(len(index)) % len(cache[0][0])
        return [(k[rows], v[rows]) for k, v in cache]

    assert not np.array_equal(beam_search(copied_step(model), PROMPT, 4, 12, stay)[0], expected)


def test_frozen_beams():
    """Found by recomputing every text, with scores rounded; the ranking would show a wrong sum or a lost row."""
    tokens, scores = beam_search(copied_step(TinyDecoder(seed=3)), PROMPT, 3, 6)
    assert tokens.tolist() == FROZEN_TOKENS
    np.testing.assert_allclose(scores, FROZEN_SCORES, rtol=0, atol=1e-6)


FROZEN_TOKENS = [[29, 20, 20, 20, 25, 62], [29, 27, 58, 58, 58, 58], [29, 20, 20, 20, 20, 25]]
FROZEN_SCORES = [-12.3574881, -12.681441, -13.3713287]


@pytest.mark.parametrize("index", [[2, 2, 0, 2], [0, 1, 2], [1, 1]])
def test_reorder_gives_every_beam_rows_of_its_own(index):
    rng = np.random.default_rng(0)
    cache = [(rng.standard_normal((3, 2, 4, 5)), rng.standard_normal((3, 2, 4, 5))) for _ in range(2)]
    before = [(k.copy(), v.copy()) for k, v in cache]
    reordered = reorder_cache(cache, np.array(index))
    for new, old in zip(reordered, before, strict=True):
        for ours, theirs in zip(new, old, strict=True):
            np.testing.assert_array_equal(ours, np.stack([theirs[beam] for beam in index]))
    for new in (x for pair in reordered for x in pair):
        new[0] = 99.0
        assert not (new[1] == 99.0).any()
    for now, old in zip(cache, before, strict=True):
        np.testing.assert_array_equal(now, old)
    assert [k.shape for k, _ in reorder_cache(cache, [])] == [(0, 2, 4, 5)] * 2
    assert reorder_cache([], [0, 0]) == []


def test_the_prompt_goes_in_once_and_then_one_token_a_beam():
    seen = []
    inner = copied_step(TinyDecoder())

    def step(tokens, cache):
        seen.append((tokens.shape, None if cache is None else cache[0][0].shape))
        return inner(tokens, cache)

    beam_search(step, PROMPT, 3, 4)
    assert seen == [((1, 5), None)] + [((3, 1), (3, 2, 5 + i, 8)) for i in range(3)]


def test_fewer_continuations_than_beams_at_first():
    rows = []
    inner = table_step(scores_of(0, ties=False), 3)

    def step(tokens, cache):
        rows.append(len(tokens))
        return inner(tokens, cache)

    tokens, _ = beam_search(step, np.array([0]), 20, 4)
    assert rows == [1, 3, 9, 20] and len({tuple(text) for text in tokens.tolist()}) == 20


def test_nothing_to_generate_calls_no_step():
    def step(tokens, cache):
        raise AssertionError("there is nothing to ask for")

    tokens, scores = beam_search(step, PROMPT, 3, 0)
    assert tokens.shape == (3, 0) and scores.tolist() == [0, 0, 0]


def test_what_is_not_allowed_is_ranked_last():
    """-inf is an order like any other: such a beam stands behind all others, by beam and id."""

    def step(tokens, cache):
        return np.where(np.arange(4) < 2, -1.0, -np.inf)[None].repeat(len(tokens), axis=0), cache

    tokens, scores = beam_search(step, PROMPT, 3, 1, lambda cache, index: cache)
    assert tokens.tolist() == [[0], [1], [2]] and scores.tolist() == [-1, -1, -np.inf]
    tokens, _ = beam_search(step, PROMPT, 4, 2, lambda cache, index: cache)
    assert tokens.tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]


def test_log_softmax_keeps_what_a_probability_would_lose():
    log_probs = log_softmax(np.array([[0.0, -800.0], [-1e4, -1e4]]))
    np.testing.assert_allclose(log_probs, [[0.0, -800.0], [-np.log(2)] * 2], rtol=1e-12)


# Block tables


def test_reordering_tables_copies_no_block():
    """Blocks are shared at the reorder and copied when written: one for each beam but the last that shares a block."""
    events = []
    pool = BlockPool(10, 4, 1, 2, events=events)
    cache = PagedCache(pool)
    cache.append(np.ones((1, 6, 2)), np.ones((1, 6, 2)))
    events.clear()
    tables = reorder_tables([[cache]], [0, 0, 0])
    assert [event["do"] for event in events] == ["fork"] * 3 + ["release"]
    assert pool.n_free == 8 and len(cache) == 0 and [pool.count(block) for block in (0, 1)] == [3, 3]
    for [beam] in tables:
        beam.append(np.zeros((1, 1, 2)), np.zeros((1, 1, 2)))
    assert pool.n_free == 6 and [event["do"] for event in events].count("copy") == 2
    assert reorder_tables(tables, []) == [] and pool.n_free == 10


def test_a_refused_reorder_of_tables_changes_nothing(no_shape_hook):
    pool = BlockPool(4, 2, 1, 2)
    cache = PagedCache(pool)
    cache.append(np.ones((1, 2, 2)), np.ones((1, 2, 2)))
    for index in ([0, 1], [-1]):
        with pytest.raises(ValueError, match="beam_index must be 0 to 0, got"):
            reorder_tables([[cache]], index)
    assert len(cache) == 2 and pool.count(0) == 1


@pytest.mark.parametrize("n_blocks", [(9, 1), (5, 5), (20, 7)])
def test_a_search_that_runs_out_of_blocks_leaves_none_in_use(n_blocks):
    """In the second layer of the prompt, or later: nobody else could let go of what the beams hold."""
    model = TinyDecoder()
    config = model.config
    pools = [BlockPool(n, 2, config.n_kv_heads, config.head_dim) for n in n_blocks]
    with pytest.raises(MemoryError, match="pool empty"):
        beam_search(paged_step(model, pools), np.array([3, 1, 4]), 4, 8, reorder_tables)
    assert tuple(pool.n_free for pool in pools) == n_blocks


# Bad input


@pytest.mark.parametrize(
    "cache, index, message",
    [
        ([(2, 2)], [0, 2], "beam_index must be 0 to 1, got 0 to 2"),
        ([(2, 2)], [-1], "beam_index must be 0 to 1, got -1 to -1"),
        ([(2, 2)], [0.0], "beam_index: expected integers, got float64"),
        ([(2, 2)], 1, r"beam_index: expected shape \(n_next,\), got \(\): 0 axes"),
        ([(0, 0)], [0], "beam_index must be empty, as there are no beams, got 0 to 0"),
        ([(2, 2)], [[0]], r"beam_index: expected shape \(n_next,\), got \(1, 1\)"),
        ([(2, 3)], [0], r"v of layer 0: expected .* got \(3, 1, 4, 5\): n_beams is 3"),
        ([(2, 2), (3, 3)], [0], r"k of layer 1: expected .* got \(3, 1, 4, 5\): n_beams is 3"),
    ],
)
def test_a_bad_reorder_is_refused(cache, index, message, no_shape_hook):
    cache = [(np.zeros((n_k, 1, 4, 5)), np.zeros((n_v, 1, 4, 5))) for n_k, n_v in cache]
    with pytest.raises(ValueError, match=message):
        reorder_cache(cache, index)


def test_a_layer_that_is_no_pair_is_refused(no_shape_hook):
    with pytest.raises(ValueError, match=r"cache of layer 0: expected \(k, v\), got 3 of them"):
        reorder_cache([np.zeros((3, 1, 4, 5))], [0])


def test_a_prompt_that_is_no_ints_is_refused(no_shape_hook):
    with pytest.raises(ValueError, match="prompt: expected integers, got float64"):
        beam_search(table_step(scores_of(0, False), 3), np.array([1.0]), 2, 2)


@pytest.mark.parametrize(
    "prompt, n_beams, n_new, message",
    [
        ([], 2, 3, "the prompt is empty"),
        ([[1]], 2, 3, r"prompt: expected shape \(n_prompt,\), got \(1, 1\)"),
        ([1], 0, 3, "n_beams: expected a whole number of at least 1, got 0"),
        ([1], 2, -1, "n_new: expected a whole number of at least 0, got -1"),
        ([1], 10, 2, "n_beams: expected at most 9, the continuations of 2 tokens from 3, got 10"),
    ],
)
def test_a_bad_search_is_refused(prompt, n_beams, n_new, message, no_shape_hook):
    with pytest.raises(ValueError, match=message):
        beam_search(table_step(scores_of(0, False), 3), np.array(prompt, dtype=int), n_beams, n_new)


@pytest.mark.parametrize(
    "answer, message",
    [
        (np.zeros((2, 5)), r"log_probs: expected shape \(n=1, vocab\), got \(2, 5\)"),
        (np.array([[0.0, np.inf, -np.inf]]), r"log_probs: \+inf is no logarithm of a probability"),
        (np.full((1, 5), np.nan), "log_probs: a nan has no place in an order"),
    ],
)
def test_bad_log_probabilities_are_refused(answer, message, no_shape_hook):
    with pytest.raises(ValueError, match=message):
        beam_search(lambda tokens, cache: (answer, []), PROMPT, 2, 2)


# transformers, an implementation that shares no line with ours


@pytest.mark.parametrize("n_beams", [1, 2, 5])
def test_equals_transformers(n_beams):
    torch = pytest.importorskip("torch", reason="the oracle is transformers")
    pytest.importorskip("transformers", reason="the oracle is transformers")
    from kvlab.torch_decoder import TorchDecoder, to_llama

    for seed in range(3):
        model = TinyDecoder(seed=seed)
        llama, ids = to_llama(TorchDecoder.from_numpy(model)), torch.from_numpy(PROMPT)[None]
        with torch.no_grad():
            theirs = llama.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                num_beams=n_beams,
                num_return_sequences=n_beams,
                max_new_tokens=10,
                length_penalty=0.0,
                do_sample=False,
                pad_token_id=0,
                return_dict_in_generate=True,
                output_scores=True,
            )
        tokens, scores = beam_search(copied_step(model), PROMPT, n_beams, 10)
        np.testing.assert_array_equal(tokens, theirs.sequences[:, 5:].numpy())
        if n_beams > 1:  # greedy generation reports no sum
            np.testing.assert_allclose(scores, theirs.sequences_scores.numpy(), rtol=0, atol=1e-5)
