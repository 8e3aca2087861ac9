"""Unusual: adds up the shapes of the score matrices step by step."""


def score_counts(n):
    without_cache, with_cache = 0, 0
    t = 0
    while t < n:
        t += 1
        rows, columns = t, t
        without_cache += rows * columns
        with_cache += 1 * columns
    return (without_cache, with_cache)
