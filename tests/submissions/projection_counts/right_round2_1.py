"""Binomial coefficients."""

from math import comb


def projection_counts(n):
    return comb(n + 1, 2), comb(n, 1)
