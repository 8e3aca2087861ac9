# loops over the queries
import numpy as np


def ragged_mask(attention_mask, n_new):
    real = np.asarray(attention_mask) != 0
    batch, n_total = real.shape
    mask = np.zeros((batch, n_new, n_total), dtype=bool)
    for i, at in enumerate(range(n_total - n_new, n_total)):
        mask[:, i, :at] = real[:, :at] & real[:, at : at + 1]
        mask[:, i, at] = True
    return mask
