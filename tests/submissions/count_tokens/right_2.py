"""Unusual: divides the number of elements by the other two dimensions."""


def count_tokens(k):
    return k.size // (k.shape[0] * k.shape[2])
