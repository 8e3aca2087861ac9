"""Unusual: unpacks the shape, with underscores for what it does not need."""


def count_tokens(k):
    _, n_total, _ = k.shape
    return n_total
