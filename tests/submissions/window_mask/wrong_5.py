# A start before the text wraps round: queries nearer than the window to the beginning see nothing (window > 1, first rows).
import numpy as np


def window_mask(n_new, n_total, window):
    mask = np.zeros((n_new, n_total), dtype=bool)
    for i in range(n_new):
        q = n_total - n_new + i
        mask[i, q - window + 1 : q + 1] = True
    return mask
