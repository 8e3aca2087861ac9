"""Wrong: counts only the final matrix, n by n, against n rows of growing length."""


def score_counts(n):
    return n * n, n * (n + 1) // 2
