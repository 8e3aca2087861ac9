# Looks ahead: the distance is taken without a sign, so later tokens inside the window are seen (n_new and window of 2 or more).
import numpy as np


def window_mask(n_new, n_total, window):
    q = np.arange(n_total - n_new, n_total)[:, None]
    t = np.arange(n_total)[None, :]
    return np.abs(q - t) < window
