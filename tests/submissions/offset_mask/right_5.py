"""Unusual: a strided, read-only window over one line of True and False."""

import numpy as np


def offset_mask(n_new, n_total):
    if n_new == 0:
        return np.empty((0, n_total), dtype=bool)
    line = np.array([True] * n_total + [False] * (n_new - 1))
    return np.lib.stride_tricks.sliding_window_view(line, n_total)[::-1]
