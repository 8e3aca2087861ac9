# WRONG: a window at least as long as the text is cut to n_total - 1, so the last query loses key 0 (window >= n_total > 1).
import numpy as np


def window_mask(n_new, n_total, window):
    window = min(window, max(1, n_total - 1))
    q = np.arange(n_total - n_new, n_total)[:, None]
    k = np.arange(n_total)[None, :]
    return (k <= q) & (q - k < window)
