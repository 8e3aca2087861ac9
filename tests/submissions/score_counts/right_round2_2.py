"""Accumulates odd differences instead of squaring."""


def score_counts(n):
    square = dense = cached = 0
    for i in range(n):
        square += 2 * i + 1
        dense += square
        cached += i + 1
    return dense, cached
