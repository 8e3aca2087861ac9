"""Wrong: the without-cache sum stops one step early, n (n - 1) / 2."""


def projection_counts(n):
    return sum(range(n)), n
