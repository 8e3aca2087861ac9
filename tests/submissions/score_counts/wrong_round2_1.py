"""Divides by 6 too early: right for n = 8, wrong for n = 4."""


def score_counts(n):
    return n * (n + 1) // 6 * (2 * n + 1), n * (n + 1) // 2
