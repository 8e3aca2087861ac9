# WRONG: a batch without any pad takes a short way that gives (1, n_new, n_total) for every batch size (no row padded, batch > 1).
import numpy as np


def ragged_mask(attention_mask, n_new):
    real = np.asarray(attention_mask).astype(bool)
    n_total = real.shape[1]
    at = np.arange(n_total - n_new, n_total)
    causal = np.arange(n_total) <= at[:, None]
    if real.all():
        return causal[None]
    own = np.arange(n_total) == at[:, None]
    pad_query = ~real[:, at, None]
    seen = causal & real[:, None, :]
    return np.where(pad_query, own, seen)
