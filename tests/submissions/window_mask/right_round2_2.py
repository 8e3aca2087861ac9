# one pattern of distances, a row is a slice of it
import numpy as np


def window_mask(n_new, n_total, window):
    pattern = np.zeros(n_new + 2 * n_total, dtype=bool)
    first = max(0, n_new + n_total - window)
    pattern[first : n_new + n_total] = True
    mask = np.zeros((n_new, n_total), dtype=bool)
    for i in range(n_new):
        shift = 2 * n_new - 1 - i
        mask[i] = pattern[shift : shift + n_total]
    return mask
