"""Unusual: accumulates with itertools, odd numbers make the squares."""

from itertools import accumulate


def score_counts(n):
    squares = accumulate(range(1, 2 * n, 2))
    return sum(squares), sum(accumulate([1] * n))
