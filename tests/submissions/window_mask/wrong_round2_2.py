# WRONG: built in tiles of `window` rows; the last, shorter tile is placed as if it were full (n_new > window and n_new % window != 0).
import numpy as np


def window_mask(n_new, n_total, window):
    mask = np.zeros((n_new, n_total), dtype=bool)
    k = np.arange(n_total)[None, :]
    for start in range(0, n_new, window):
        rows = min(window, n_new - start)
        end = n_total - n_new + start + window
        q = np.arange(end - rows, end)[:, None] if n_new > window else np.arange(n_total - n_new, n_total)[:, None]
        mask[start : start + rows] = (k <= q) & (q - k < window)
    return mask
