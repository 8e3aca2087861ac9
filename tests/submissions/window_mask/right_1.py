import numpy as np


def window_mask(n_new, n_total, window):
    q = np.arange(n_total - n_new, n_total)[:, None]
    t = np.arange(n_total)
    return (t <= q) & (t > q - window)
