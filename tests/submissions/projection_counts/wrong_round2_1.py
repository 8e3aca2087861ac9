"""Halves each term separately: wrong for odd n."""


def projection_counts(n):
    return n * n // 2 + n // 2, n
