# WRONG: order is taken from position ids, in which pads are 0: a pad query also sees the row's first token, which comes later.
import numpy as np


def ragged_mask(attention_mask, n_new):
    real = np.asarray(attention_mask).astype(bool)
    n_total = real.shape[1]
    positions = np.where(real, np.cumsum(real, axis=1) - 1, 0)
    query = positions[:, n_total - n_new :, None]
    own = np.eye(n_total, dtype=bool)[n_total - n_new :]
    return real[:, None, :] & (positions[:, None, :] <= query) | own
