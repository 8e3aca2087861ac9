"""Unusual: fills an array in two loops."""

import numpy as np


def offset_mask(n_new, n_total):
    n_past = n_total - n_new
    mask = np.zeros((n_new, n_total), dtype=bool)
    for i in range(n_new):
        for j in range(n_total):
            if j <= n_past + i:
                mask[i, j] = True
    return mask
