# WRONG: a column that is a pad in ANY row is treated as a pad query in all rows: token queries of longer rows see only themselves (uneven batch, a pad among the queries).
import numpy as np


def ragged_mask(attention_mask, n_new):
    real = np.asarray(attention_mask).astype(bool)
    n_total = real.shape[1]
    at = np.arange(n_total - n_new, n_total)
    causal = np.arange(n_total) <= at[:, None]
    own = np.arange(n_total) == at[:, None]
    pad_query = ~real[:, at].all(axis=0)[:, None]
    seen = causal & real[:, None, :]
    return np.where(pad_query, own, seen)
