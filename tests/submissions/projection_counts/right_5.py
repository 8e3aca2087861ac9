"""Unusual: shifts instead of a division, on Python ints of any size."""


def projection_counts(n):
    return (n * n + n) >> 1, n
