"""Wrong: counts matrix products, three (q, k, v) for each token."""


def projection_counts(n):
    return 3 * n * (n + 1) // 2, 3 * n
