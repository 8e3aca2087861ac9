"""Wrong: both are floats, and right otherwise."""


def score_counts(n):
    return n * (n + 1) * (2 * n + 1) / 6, n * (n + 1) / 2
