"""Checks for lesson 01: a stable softmax, and causal attention over many heads."""

from typing import Any

import numpy as np

from kvlab.attention import attention, softmax
from kvlab.checks.model import Exercise, Mistake, Probe, Stage, call


def _rows(values: Any, dtype: Any = np.float64) -> Probe:
    x = np.array(values, dtype)
    kind = "" if dtype is np.float64 else f", dtype {np.dtype(dtype)}"
    tolerance = 1e-9 if dtype is np.float64 else 1e-4
    return call(f"softmax(np.array({np.array(values).tolist()}{kind}))", x, tolerance=tolerance, key="the weights")


def _random_rows(*shape: int) -> Probe:
    x = np.random.default_rng(sum(shape)).standard_normal(shape)
    return call(f"softmax of random numbers of shape {shape}", x, key="the weights")


def _exp_over_sum(x: np.ndarray, shift: Any = 0.0, axis: int | None = -1) -> np.ndarray:
    e = np.exp(x - shift)
    return e / e.sum(axis=axis, keepdims=True)


def _in_place(x: np.ndarray) -> np.ndarray:
    x -= x.max(axis=-1, keepdims=True)
    return _exp_over_sum(x)


SOFTMAX = Exercise(
    id="softmax",
    reference=softmax,
    stages=[
        Stage("one row of small numbers sums to 1", [_rows([0.0, 1.0, 2.0]), _rows([3.0])]),
        Stage("each row of several axes sums to 1", [_rows([[0.0, 1.0, 2.0], [5.0, 0.0, 0.0]]), _random_rows(2, 3, 4)]),
        Stage("scores near 1,000 stay finite", [_rows([1000.0, 1001.0]), _rows([-1000.0, -1001.0])]),
        Stage("rows of very different size keep their own weights", [_rows([[1000.0, 1000.0], [-1000.0, -1001.0]])]),
        Stage(
            "hidden entries (-inf) take no weight",
            [_rows([-np.inf, 0.0, 1.0]), _rows([[-np.inf, 2.0], [1.0, 3.0]]), _rows([-np.inf, -1000.0, -1001.0])],
        ),
        Stage("float32 in, float32 or wider out", [_rows([[0.5, 1.5, -2.0]], np.float32)]),
    ],
    mistakes=[
        Mistake(
            "no_maximum",
            "Nothing is subtracted before exp: it overflows to inf for scores near 1,000, and inf / inf is nan.",
            "What is np.exp(1000.0)?",
            _exp_over_sum,
        ),
        Mistake(
            "maximum_of_all",
            "One maximum is taken over the whole array: rows far below it underflow to 0 / 0.",
            "If one row holds 1,000 and another -1,000, what does exp leave of the second after 1,000 is subtracted?",
            lambda x: _exp_over_sum(x, x.max()),
        ),
        Mistake(
            "first_axis",
            "The weights sum to 1 down the columns: softmax runs over the first axis, where the last one belongs.",
            "In scores of shape (queries, keys), along which axis do one query's weights lie?",
            lambda x: _exp_over_sum(x, x.max(axis=0, keepdims=True), 0),
        ),
        Mistake(
            "query_axis",
            "The weights sum to 1 over the second to last axis, that of the queries, instead of over the keys.",
            "In scores of shape (heads, queries, keys), along which axis do one query's weights lie?",
            lambda x: _exp_over_sum(x, x.max(axis=max(-2, -x.ndim), keepdims=True), max(-2, -x.ndim)),
        ),
        Mistake(
            "sum_of_all",
            "All numbers of the array are divided by one sum: only the whole array sums to 1, its rows do not.",
            "How many rows of weights are there in an array of shape (2, 3), and what should each of them sum to?",
            lambda x: _exp_over_sum(x, x.max(axis=-1, keepdims=True), None),
        ),
        Mistake(
            "no_exponential",
            "The entries are divided by their sum without exp: negative scores give negative weights.",
            "Can a weight be negative?",
            lambda x: x / x.sum(axis=-1, keepdims=True),
        ),
        Mistake(
            "not_normalised",
            "The exponentials are not divided by their sum: the weights of a row do not sum to 1.",
            "What should the weights of one query add up to?",
            lambda x: np.exp(x - x.max(axis=-1, keepdims=True)),
        ),
        Mistake(
            "minimum_subtracted",
            "The minimum is subtracted where the maximum belongs: the largest score can still overflow, and a hidden "
            "entry turns the row into nan.",
            "Which entry of a row makes exp overflow, the largest or the smallest?",
            lambda x: _exp_over_sum(x, x.min(axis=-1, keepdims=True)),
        ),
        Mistake(
            "small_number_in_the_sum",
            "A small number is added to the sum, against a division by zero: every row then sums to less than 1.",
            "After its maximum is subtracted, can the sum of a row's exponentials still be 0?",
            lambda x: (lambda e: e / (e.sum(axis=-1, keepdims=True) + 1e-6))(np.exp(x - x.max(-1, keepdims=True))),
        ),
        Mistake(
            "hidden_as_a_number",
            "-inf is replaced by a number before the maximum is taken: where scores are as low as that number, hidden "
            "entries take weight.",
            "What weight does a hidden entry get when all other scores of its row are near -1,000?",
            lambda x: softmax(np.where(np.isneginf(x), -1000.0, x)),
        ),
        Mistake(
            "changes_its_input",
            "The maximum is subtracted from the array that was handed in: the caller's scores are changed.",
            "What does `x -= ...` do to the array that the caller still holds?",
            _in_place,
        ),
    ],
)


def _qkv(n_heads: int, n_tokens: int, head_dim: int, scale: float = 1.0, dtype: Any = np.float64) -> list[np.ndarray]:
    rng = np.random.default_rng(100 * n_heads + 10 * n_tokens + head_dim)
    return [(scale * rng.standard_normal((n_heads, n_tokens, head_dim))).astype(dtype) for _ in range(3)]


def _attend(n_heads: int, n_tokens: int, head_dim: int, scale: float = 1.0, dtype: Any = np.float64) -> Probe:
    shape = (n_heads, n_tokens, head_dim)
    extra = ("" if scale == 1.0 else f" {scale:g} times as large") + (
        "" if dtype is np.float64 else f", {np.dtype(dtype)}"
    )
    tolerance = 1e-9 if dtype is np.float64 else 1e-4
    describe = f"causal_attention(q, k, v), each of shape {shape}{extra}"
    return call(describe, *_qkv(*shape, scale, dtype), tolerance=tolerance, key="the output")


def _scores(q: np.ndarray, k: np.ndarray) -> np.ndarray:
    return q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1])


def _hidden(q: np.ndarray, shift: int = 0) -> np.ndarray:
    return ~np.tri(q.shape[1], dtype=bool, k=shift)


def _masked_after(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    return np.where(_hidden(q), 0.0, softmax(_scores(q, k))) @ v


def _mask_times_scores(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    return softmax(_scores(q, k) * ~_hidden(q)) @ v


def _strict(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    return _exp_over_sum(np.where(_hidden(q, -1), -np.inf, _scores(q, k))) @ v


def _reversed(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Sees itself and what lies ahead."""
    return softmax(np.where(np.tri(q.shape[1], k=-1, dtype=bool), -np.inf, _scores(q, k))) @ v


def _heads_mixed(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Reshapes heads to tokens straight away, where the axes must be exchanged."""
    n_heads, n_tokens, head_dim = q.shape
    return attention(q, k, v).reshape(n_tokens, n_heads, head_dim).transpose(1, 0, 2)


def _summed_over_heads(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    scores = np.broadcast_to(_scores(q, k).mean(axis=0), (len(q), q.shape[1], q.shape[1]))
    return softmax(np.where(_hidden(q), -np.inf, scores)) @ v


def _query_axis(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    masked = np.where(_hidden(q), -np.inf, _scores(q, k))
    return _exp_over_sum(masked, masked.max(axis=-2, keepdims=True), -2) @ v


CAUSAL_ATTENTION = Exercise(
    id="causal_attention",
    reference=lambda q, k, v: attention(q, k, v),
    stages=[
        Stage("one token sees itself", [_attend(1, 1, 4)]),
        Stage("one head, several tokens", [_attend(1, 2, 3), _attend(1, 5, 3)]),
        Stage("many heads, each by itself", [_attend(3, 2, 4), _attend(2, 5, 3)]),
        Stage("scores near 1,000 stay finite", [_attend(2, 3, 4, scale=40.0)]),
        Stage("other head widths, and float32", [_attend(3, 4, 16), _attend(2, 6, 5, dtype=np.float32)]),
    ],
    mistakes=[
        Mistake(
            "no_mask",
            "Nothing is hidden: tokens look at tokens that come after them.",
            "When the first token asks, which keys exist already while a text is being generated?",
            lambda q, k, v: softmax(_scores(q, k)) @ v,
        ),
        Mistake(
            "strict",
            "A token cannot see itself. The first row has nothing to look at and becomes nan.",
            "Which key is left for the very first token if it may not see its own?",
            _strict,
        ),
        Mistake(
            "mask_reversed",
            "The mask is the wrong way round: a token sees itself and what comes after it, and nothing before.",
            "Does the last token of a text see all keys, or only its own?",
            _reversed,
        ),
        Mistake(
            "masked_after_softmax",
            "Weights are set to 0 after the softmax: what is left of a row no longer sums to 1.",
            "What do the weights of the first row add up to once its hidden ones are set to 0?",
            _masked_after,
        ),
        Mistake(
            "mask_times_scores",
            "The scores are multiplied with the mask: a hidden score becomes 0, and exp(0) is 1, not nothing.",
            "Which score gives a weight of exactly 0?",
            _mask_times_scores,
        ),
        Mistake(
            "no_scale",
            "The scores are not divided by sqrt(head_dim): they grow with the width, and the weights saturate.",
            "How does the variance of a dot product grow with the number of its terms?",
            lambda q, k, v: attention(q * np.sqrt(q.shape[-1]), k, v),
        ),
        Mistake(
            "scaled_by_head_dim",
            "The scores are divided by head_dim, where its square root belongs: the weights come out too even.",
            "If the variance of a dot product is head_dim, what is its standard deviation?",
            lambda q, k, v: attention(q / np.sqrt(q.shape[-1]), k, v),
        ),
        Mistake(
            "scaled_by_tokens",
            "The scores are divided by the square root of the number of tokens; the scale belongs to the head's width.",
            "Over which axis does the dot product of a query and a key sum?",
            lambda q, k, v: attention(q * np.sqrt(q.shape[-1] / q.shape[1]), k, v),
        ),
        Mistake(
            "scaled_by_all_heads",
            "The scores are divided by the square root of the whole width, all heads together.",
            "How many terms does the dot product of one head's query and key have?",
            lambda q, k, v: attention(q / np.sqrt(q.shape[0]), k, v),
        ),
        Mistake(
            "softmax_over_queries",
            "The softmax runs over the queries: each key shares itself out, where a query should.",
            "In scores of shape (heads, queries, keys), over which axis should the weights sum to 1?",
            _query_axis,
        ),
        Mistake(
            "heads_mixed",
            "Heads and tokens are mixed up by a reshape: the axes have to be exchanged, not cut anew.",
            "After your reshape, which head and token does the second row of head 0 come from?",
            _heads_mixed,
        ),
        Mistake(
            "one_pattern_for_all_heads",
            "All heads share one set of weights, the mean of their scores. Each head attends by itself.",
            "What are several heads for, if all of them look at the same tokens?",
            _summed_over_heads,
        ),
        Mistake(
            "keys_as_values",
            "The weights are applied to the keys. Keys are compared with, values are read out.",
            "Which of the three arrays does the output consist of?",
            lambda q, k, v: attention(q, k, k),
        ),
        Mistake(
            "queries_and_keys_exchanged",
            "Queries and keys are exchanged: rows of the scores belong to the keys.",
            "Whose question does one row of the weights answer?",
            lambda q, k, v: attention(k, q, v),
        ),
    ],
)

EXERCISES = [SOFTMAX, CAUSAL_ATTENTION]
