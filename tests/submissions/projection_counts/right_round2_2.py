"""Simulates the run."""


def projection_counts(n):
    without = with_cache = 0
    for length in range(1, n + 1):
        without += length
        with_cache += 1
    return without, with_cache
