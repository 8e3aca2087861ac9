"""Unusual: simulates the run with two counters."""


def projection_counts(n):
    without_cache = with_cache = 0
    for n_tokens in range(1, n + 1):
        without_cache += n_tokens
        with_cache += 1
    return without_cache, with_cache
