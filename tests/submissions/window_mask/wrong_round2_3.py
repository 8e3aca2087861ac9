# WRONG: for n_new = 0 the result has the right shape, but it is float64 instead of bool.
import numpy as np


def window_mask(n_new, n_total, window):
    rows = [[0 <= q - k < window for k in range(n_total)] for q in range(n_total - n_new, n_total)]
    return np.array(rows).reshape(n_new, n_total)
