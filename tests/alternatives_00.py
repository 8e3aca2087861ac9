"""Right answers to lesson 00's exercise that look unlike the reference."""

import numpy as np


def by_len(k):
    return len(np.moveaxis(k, 1, 0))


def by_counting(k):
    n = 0
    for _ in range(np.shape(k)[1]):
        n += 1
    return n


def as_numpy_integer(k):
    _, n_total, _ = k.shape
    return np.int64(n_total)


ALTERNATIVES = {"count_tokens": [by_len, by_counting, as_numpy_integer]}
