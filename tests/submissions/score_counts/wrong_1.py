"""Wrong: counts only the entries that causality leaves, not the dense matrix."""


def score_counts(n):
    return sum(t * (t + 1) // 2 for t in range(1, n + 1)), n * (n + 1) // 2
