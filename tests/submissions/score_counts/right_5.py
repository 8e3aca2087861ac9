"""Unusual: NumPy dot products in int64, handed back as NumPy integers."""

import numpy as np


def score_counts(n):
    t = np.arange(n + 1, dtype=np.int64)
    return t @ t, t.sum()
