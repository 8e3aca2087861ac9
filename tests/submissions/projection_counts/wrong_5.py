"""Wrong: assumes that every step without a cache projects all n tokens."""


def projection_counts(n):
    return n * n, n
