"""Counts only up to the eighth token densely, then a causal triangle: right up to n = 8."""


def score_counts(n):
    full = sum(i * i if i <= 8 else i * (i + 1) // 2 for i in range(1, n + 1))
    return full, n * (n + 1) // 2
