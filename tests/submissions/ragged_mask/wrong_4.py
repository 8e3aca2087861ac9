# The diagonal is not moved by the offset: query i sees columns up to i, wrong when n_new < n_total.
import numpy as np


def ragged_mask(attention_mask, n_new):
    real = attention_mask.astype(bool)
    n_total = real.shape[1]
    out = np.tri(n_new, n_total, dtype=bool) & real[:, None, :]
    idx = np.arange(n_new)
    out[:, idx, idx] = True
    return out
