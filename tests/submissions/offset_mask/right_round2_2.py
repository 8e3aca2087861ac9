"""Fills row by row."""

import numpy as np


def offset_mask(n_new, n_total):
    out = np.zeros((n_new, n_total), dtype=np.bool_)
    for back, row in enumerate(out[::-1]):
        row[: n_total - back] = True
    return out
