# n_new = 0: the slice [-0:] takes all columns, so the result has n_total queries.
import numpy as np


def ragged_mask(attention_mask, n_new):
    real = attention_mask.astype(bool)
    n_total = real.shape[1]
    full = np.tri(n_total, dtype=bool) & real[:, None, :]
    full = full | np.eye(n_total, dtype=bool)
    return full[:, -n_new:]
