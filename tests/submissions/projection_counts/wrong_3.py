"""Wrong: the pair comes the other way round, with cache first."""


def projection_counts(n):
    with_cache = n
    without_cache = n * (n + 1) // 2
    return with_cache, without_cache
