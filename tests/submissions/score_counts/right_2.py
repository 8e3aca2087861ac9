"""Unusual: closed forms with binomial coefficients, returned as a list."""

import math


def score_counts(n):
    return [math.comb(n + 1, 2) + 2 * math.comb(n + 1, 3), math.comb(n + 1, 2)]
