"""Wrong: true division gives a float for the first count."""


def projection_counts(n):
    return n * (n + 1) / 2, n
