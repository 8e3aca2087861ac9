# Positions are uint8: from 256 keys on they wrap round.
import numpy as np


def window_mask(n_new, n_total, window):
    t = np.arange(n_total).astype(np.uint8).astype(int)
    q = t[n_total - n_new :, None]
    return (t[None, :] <= q) & (t[None, :] > q - window)
