"""Square pyramidal number as a quarter of a tetrahedral number."""

from math import comb


def score_counts(n):
    return comb(2 * n + 2, 3) // 4, comb(n + 1, 2)
