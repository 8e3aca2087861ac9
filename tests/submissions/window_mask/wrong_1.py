# The window is one too long: a query sees `window` tokens before itself (n_total > window).
import numpy as np


def window_mask(n_new, n_total, window):
    q = np.arange(n_total - n_new, n_total)[:, None]
    t = np.arange(n_total)[None, :]
    return (t <= q) & (q - t <= window)
