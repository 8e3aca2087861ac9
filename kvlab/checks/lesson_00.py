"""Check for lesson 00: the two-minute exercise."""

from typing import Any

import numpy as np

from kvlab.checks.model import Exercise, Mistake, Stage, call


def _keys(n_kv_heads: int, n_total: int, head_dim: int) -> np.ndarray:
    return np.zeros((n_kv_heads, n_total, head_dim))


def _count_tokens(k: Any) -> int:
    return k.shape[1]


COUNT_TOKENS = Exercise(
    id="count_tokens",
    reference=_count_tokens,
    stages=[
        Stage(
            "it counts the tokens of a cache",
            [call("count_tokens of keys of shape (2, 5, 8)", _keys(2, 5, 8), key="the count")],
        ),
        Stage(
            "it counts for any number of heads and any head width",
            [
                call("count_tokens of keys of shape (3, 7, 4)", _keys(3, 7, 4), key="the count"),
                call("count_tokens of keys of shape (1, 1, 6)", _keys(1, 1, 6), key="the count"),
            ],
        ),
        Stage(
            "an empty cache holds 0 tokens",
            [call("count_tokens of keys of shape (2, 0, 8)", _keys(2, 0, 8), key="the count")],
        ),
    ],
    mistakes=[
        Mistake(
            "counts_heads",
            "This counts the first axis. In a NumPy cache of this course the first axis is the KV heads.",
            "Of the axes (n_kv_heads, n_total, head_dim), which one grows when a token is added?",
            lambda k: k.shape[0],
        ),
        Mistake(
            "counts_channels",
            "This counts the last axis, the width of one head, which is the same for every token.",
            "Of the axes (n_kv_heads, n_total, head_dim), which one grows when a token is added?",
            lambda k: k.shape[2],
        ),
        Mistake(
            "counts_numbers",
            "This counts all numbers in the array. A token is one row in every KV head, not one number.",
            "How many numbers does one token take in an array of shape (2, 5, 8)?",
            lambda k: int(k.size),
        ),
        Mistake(
            "counts_rows",
            "This counts rows over all heads. Every KV head holds a row of the same token: it is counted once a head.",
            "If a layer has 2 KV heads, how many rows does one token add?",
            lambda k: k.shape[0] * k.shape[1],
        ),
        Mistake(
            "counts_nonzero",
            "This counts rows that are not zero. A stored key may be all zeros and is a token all the same.",
            "Does the number of tokens depend on the numbers that are stored?",
            lambda k: int((np.abs(k).sum(axis=(0, 2)) > 0).sum()),
        ),
    ],
)

EXERCISES = [COUNT_TOKENS]
