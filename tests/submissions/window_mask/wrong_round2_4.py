# WRONG: window = 1 is taken for 'no window': a query sees everything before it (window = 1, n_total > 1).
import numpy as np


def window_mask(n_new, n_total, window):
    mask = np.tri(n_new, n_total, n_total - n_new, dtype=bool)
    before = window - 1
    if before:
        mask &= ~np.tri(n_new, n_total, n_total - n_new - before - 1, dtype=bool)
    return mask
