# One window for the whole chunk: all new queries reach back to the start of the first one's window (n_new of 2 or more, n_total > window).
import numpy as np


def window_mask(n_new, n_total, window):
    q = np.arange(n_total - n_new, n_total)[:, None]
    t = np.arange(n_total)[None, :]
    return (t <= q) & (t > n_total - n_new - window)
