"""Unusual: binomial coefficient, as a lambda."""

from math import comb

projection_counts = lambda n: (comb(n + 1, 2), n)  # noqa: E731
