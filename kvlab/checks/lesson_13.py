"""Checks for lesson 13: greedy decoding of a real model on caches of the learner's own."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kvlab.caches import Cache, ConcatCache
from kvlab.checks.model import Exercise, Malformed, Mistake, Observation, Probe, Stage, observe

MOST_CALLS = 60


class _Model:
    """A model whose next token depends on every token that its caches hold, and which notes its calls.

    Each of its layers keeps the tokens as keys in a cache. Logits at a position are highest at a sum over the text.
    """

    def __init__(self, vocab: int, n_layers: int) -> None:
        self.vocab, self.n_layers = vocab, n_layers
        self.fed: list[int] = []
        self.handed: list[Any] = []

    def __call__(self, ids: Any, caches: Any = None) -> np.ndarray:
        if not isinstance(ids, np.ndarray) or ids.ndim != 1 or ids.dtype.kind not in "iu":
            got = f"shape {ids.shape}, {ids.dtype}" if isinstance(ids, np.ndarray) else f"a {type(ids).__name__}"
            raise Malformed(f"model(ids, caches): expected ids of shape (n,), integers, got {got}")
        if len(self.fed) >= MOST_CALLS:
            raise Malformed(f"decode: the model was called over {MOST_CALLS} times for a few tokens")
        if caches is not None and (not isinstance(caches, Sequence) or len(caches) != self.n_layers):
            got = f"{len(caches)}" if isinstance(caches, Sequence) else f"a {type(caches).__name__}"
            raise Malformed(f"model(ids, caches): expected a list of {self.n_layers} caches, one a layer, got {got}")
        self.fed.append(len(ids))
        self.handed.append(None if caches is None else list(caches))
        rows = ids[None, :, None].astype(float)
        texts = [rows if caches is None else cache.append(rows, rows)[0] for cache in caches or [None] * self.n_layers]
        # Counted from the end, so that caches which hold different numbers of tokens still give an answer.
        best = np.zeros(len(ids), int)
        for layer, text in enumerate(texts):
            places = np.arange(1, text.shape[1] + 1)
            sums = np.cumsum(text[0, :, 0].astype(int) * (places + layer)) * 7 + places
            best += sums[len(sums) - len(ids) :]
        logits = np.zeros((len(ids), self.vocab))
        logits[np.arange(len(ids)), best % self.vocab] = 1
        return logits


def _decoding(n_prompt: int, n_new: int, n_past: int = 0, vocab: int = 31, n_layers: int = 3) -> Probe:
    def run(submission: Any) -> Observation:
        model = _Model(vocab, n_layers)
        random = np.random.default_rng(n_prompt)
        caches: list[Cache] = [ConcatCache(1, 1) for _ in range(n_layers)]
        given = list(caches)
        if n_past:
            model(random.integers(0, vocab, n_past), caches)
            model.fed.clear()
            model.handed.clear()
        ids = random.integers(0, vocab, n_prompt)
        before = ids.copy()
        out = submission(model, caches, ids, n_new)
        return {
            "the new tokens": _tokens(out),
            "tokens fed in each call": tuple(model.fed),
            "caches of each call": "yours, one a layer" if _are(model.handed, given) else "not the ones handed in",
            "tokens that your caches hold": tuple(len(cache) for cache in given),
            "ids afterwards": "unchanged" if np.array_equal(before, ids) else "changed",
        }

    past = f" over caches that hold {n_past}" if n_past else ""
    few = f", a vocabulary of {vocab:,}" if vocab != 31 else ""
    return Probe(f"decode(model, caches, ids, {n_new}) for {n_prompt} ids{past}, {n_layers} layers{few}", run)


def _tokens(out: Any) -> Any:
    """A list of ids is as good as an array; no tokens have no dtype to get wrong."""
    seen = observe(out)
    if isinstance(seen, tuple) and all(type(token) is int for token in seen):
        return np.array(seen, int)
    return seen.astype(int) if isinstance(seen, np.ndarray) and seen.shape == (0,) else seen


def _are(handed: Sequence[Any], given: Sequence[Cache]) -> bool:
    return all(h is not None and all(a is b for a, b in zip(h, given, strict=True)) for h in handed)


def decode(model: Any, caches: Sequence[Cache], ids: np.ndarray, n_new: int) -> np.ndarray:
    """Greedy decoding on caches that are handed in: the prompt once, then one token a call.

    Args:
        model: model(ids, caches) -> logits (n, vocab), ids (n,) ints; it appends to the caches, one a layer.
        caches: one a layer; tokens they hold already come before ids.
        ids: (n_prompt,) ints, at least one.
        n_new: tokens to decode.

    Returns:
        (n_new,) ints, the new tokens alone. The last one is never fed in: n_new calls, the caches end up with
        n_prompt + n_new - 1 tokens more.
    """
    new: list[int] = []
    fed = ids
    for _ in range(n_new):
        new.append(int(model(fed, caches)[-1].argmax()))
        fed = np.array(new[-1:])
    return np.array(new, int)


def _loop(
    row: int = -1,
    calls: int = 0,
    feed_all: bool = False,
    pass_caches: Callable[[list[Any]], Any] = lambda caches: caches,
    with_prompt: bool = False,
    cut: bool = False,
    end: int | None = None,
) -> Callable[..., Any]:
    """The right loop, spoiled by one of its arguments."""

    def wrong(model: Any, caches: list[Any], ids: np.ndarray, n_new: int) -> Any:
        out = fed = ids
        for _ in range(n_new + calls if n_new else 0):
            token = model(fed, pass_caches(caches))[row].argmax()
            out = np.append(out, token)
            fed = out if feed_all else out[-1:]
            if token == end:
                break
        new = out if with_prompt else out[len(ids) :]
        return new[:n_new] if cut else new

    return wrong


def _one_by_one(model: Any, caches: list[Any], ids: np.ndarray, n_new: int) -> np.ndarray:
    for i in range(len(ids) - 1 if n_new else 0):
        model(ids[i : i + 1], caches)
    return decode(model, caches, ids[-1:], n_new)


def _last_twice(model: Any, caches: list[Any], ids: np.ndarray, n_new: int) -> np.ndarray:
    if n_new:
        model(ids, caches)
    return decode(model, caches, ids[-1:], n_new)


def _in_two_calls(model: Any, caches: list[Any], ids: np.ndarray, n_new: int) -> np.ndarray:
    if n_new and len(ids) > 1:
        model(ids[:-1], caches)
        ids = ids[-1:]
    return decode(model, caches, ids, n_new)


def _prefills_for_nothing(model: Any, caches: list[Any], ids: np.ndarray, n_new: int) -> np.ndarray:
    """The prompt goes in before the loop looks whether a token is wanted."""
    new, logits = np.zeros(0, int), model(ids, caches)
    while len(new) < n_new:
        new = np.append(new, logits[-1].argmax())
        if len(new) < n_new:
            logits = model(new[-1:], caches)
    return new


DECODE = Exercise(
    id="decode",
    reference=decode,
    stages=[
        Stage("one new token takes one call", [_decoding(4, 1)]),
        Stage("the prompt once, then one token a call", [_decoding(4, 3), _decoding(1, 4, n_layers=2)]),
        Stage("caches that hold a text already are continued", [_decoding(3, 4, n_past=5), _decoding(4, 3, n_past=2)]),
        Stage("no token ends the text early", [_decoding(5, 6, vocab=3)]),
        Stage("ids as large as a real vocabulary", [_decoding(3, 4, vocab=49_152)]),
        Stage("no new tokens, no calls", [_decoding(4, 0)]),
    ],
    mistakes=[
        Mistake(
            "whole_sequence_with_a_cache",
            "The whole sequence is fed in at every step although the caches hold it: its keys are stored again.",
            "Which tokens do the caches not know yet when the second call is made?",
            _loop(feed_all=True),
        ),
        Mistake(
            "no_cache",
            "The caches are never handed to the model: every call computes the whole sequence again.",
            "How many tokens do your caches hold at the end?",
            _loop(feed_all=True, pass_caches=lambda caches: None),
        ),
        Mistake(
            "caches_dropped",
            "One token is fed in and no caches with it: the model has forgotten the prompt.",
            "What does the model know of the prompt in your second call?",
            _loop(pass_caches=lambda caches: None),
        ),
        Mistake(
            "copied_caches",
            "The model is handed copies: what it appends is lost when the call ends.",
            "Whose caches does the model append to?",
            _loop(pass_caches=copy.deepcopy),
        ),
        Mistake(
            "one_cache_for_all_layers",
            "All layers are given the same cache: each appends its rows after those of the layer below.",
            "Does layer 1 attend to the keys of layer 0?",
            _loop(pass_caches=lambda caches: [caches[0]] * len(caches)),
        ),
        Mistake(
            "first_position",
            "The next token is taken from the first position's logits. At one-token steps first and last are the same, "
            "so only the prompt's call shows it.",
            "Which of the prompt's positions predicts the token after the prompt?",
            _loop(row=0),
        ),
        Mistake(
            "one_token_too_many",
            "One token too many comes back: the prompt's call already gives the first new one.",
            "How many new tokens are there after n_new calls?",
            _loop(calls=1),
        ),
        Mistake(
            "one_token_too_few",
            "One token too few comes back: the prompt's call was not counted as one that gives a token.",
            "How many new tokens are there after n_new - 1 calls?",
            _loop(calls=-1),
        ),
        Mistake(
            "one_call_too_many",
            "The tokens are right, and one more call was made: the last token is never fed in.",
            "Who reads the logits of your last call?",
            _loop(calls=1, cut=True),
        ),
        Mistake(
            "prompt_token_by_token",
            "The prompt is fed in one token at a time: right, and slow, since each call reads all weights once.",
            "How many times are the weights read for a prompt of 1,000 tokens?",
            _one_by_one,
        ),
        Mistake(
            "last_prompt_token_twice",
            "The last prompt token is fed in twice: once with the prompt, once more to get logits.",
            "What did the prompt's call return?",
            _last_twice,
        ),
        Mistake(
            "prompt_in_two_calls",
            "The prompt takes two calls, all but its last token and then that one: one call more than needed.",
            "Which call's logits does your loop throw away?",
            _in_two_calls,
        ),
        Mistake(
            "prefills_for_nothing",
            "The prompt is fed in although no token is asked for.",
            "What is in the caches after decode(model, caches, ids, 0)?",
            _prefills_for_nothing,
        ),
        Mistake(
            "ends_early",
            "A token is taken for the end of the text. Nothing was said of an end token: n_new tokens are asked for.",
            "Which token ids mean the end of a text to a model that you know nothing of?",
            _loop(end=0),
        ),
        Mistake(
            "prompt_in_front",
            "The prompt comes back in front of the new tokens; only the new ones are asked for.",
            "What is the length of the result for a prompt of 4 and 3 new tokens?",
            _loop(with_prompt=True),
        ),
    ],
)

EXERCISES = [DECODE]
