# WRONG: the mask is remembered by (n_total, window) only; a later call with a smaller n_new gets the first rows of the remembered mask.
import numpy as np


def band(n_new, n_total, window, seen={}):
    mask = seen.get((n_total, window))
    if mask is None or len(mask) < n_new:
        q = np.arange(n_total - n_new, n_total)[:, None]
        k = np.arange(n_total)[None, :]
        mask = seen[n_total, window] = (k <= q) & (q - k < window)
    return mask


def window_mask(n_new, n_total, window):
    return band(n_new, n_total, window)[:n_new].copy()
