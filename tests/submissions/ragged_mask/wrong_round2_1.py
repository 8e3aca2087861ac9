# WRONG: the pad queries' own column lacks the offset: a pad query sees column i, not n_total - n_new + i (n_new < n_total and a pad among the queries).
import numpy as np


def ragged_mask(attention_mask, n_new):
    real = np.asarray(attention_mask).astype(bool)
    n_total = real.shape[1]
    at = np.arange(n_total - n_new, n_total)
    causal = np.arange(n_total) <= at[:, None]
    own = np.eye(n_new, n_total, dtype=bool)
    pad_query = ~real[:, at, None]
    seen = causal & real[:, None, :]
    return np.where(pad_query, own, seen)
