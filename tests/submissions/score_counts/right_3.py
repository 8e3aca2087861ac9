"""Unusual: functools.reduce over pairs with a starting value."""

from functools import reduce


def score_counts(n):
    return reduce(lambda pair, t: (pair[0] + t * t, pair[1] + t), range(1, n + 1), (0, 0))
