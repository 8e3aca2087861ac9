import numpy as np


def window_mask(n_new, n_total, window):
    # a band out of shifted diagonals
    total = np.zeros((n_new, n_total), dtype=int)
    for back in range(min(window, n_total)):
        total += np.eye(n_new, n_total, k=n_total - n_new - back, dtype=int)
    return total.astype(bool)
