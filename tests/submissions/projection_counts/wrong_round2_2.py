"""True division gives a float where ints are asked."""


def projection_counts(n):
    return n * (n + 1) / 2, n
