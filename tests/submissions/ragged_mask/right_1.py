import numpy as np


def ragged_mask(attention_mask, n_new):
    real = np.asarray(attention_mask).astype(bool)
    n_total = real.shape[1]
    cols = np.arange(n_total)
    rows = cols[n_total - n_new :, None]
    return ((cols <= rows) & real[:, None, :] & real[:, n_total - n_new :, None]) | (cols == rows)
