# A window as long as the text or longer is cut to n_total - 1: the last query loses token 0 (window >= n_total).
import numpy as np


def window_mask(n_new, n_total, window):
    window = min(window, n_total - 1)
    q = np.arange(n_total - n_new, n_total)[:, None]
    t = np.arange(n_total)[None, :]
    return (t <= q) & (q - t < window)
