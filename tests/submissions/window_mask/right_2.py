import numpy as np


def window_mask(n_new, n_total, window):
    mask = np.zeros((n_new, n_total), dtype=bool)
    for i in range(n_new):
        at = n_total - n_new + i
        mask[i, max(0, at - window + 1) : at + 1] = True
    return mask
