import numpy as np


def _one(row, n_new):
    n = len(row)
    full = np.tri(n, dtype=bool)
    full[:, np.flatnonzero(row == 0)] = False
    np.fill_diagonal(full, True)
    return full[n - n_new :]


def ragged_mask(attention_mask, n_new):
    return np.stack([_one(row, n_new) for row in np.asarray(attention_mask)])
