# WRONG: a query sees what is of its own kind: a pad query sees the pads before it too (two pads of a row up to a pad query).
import numpy as np


def ragged_mask(attention_mask, n_new):
    kind = np.asarray(attention_mask).astype(bool)
    n_total = kind.shape[1]
    at = np.arange(n_total - n_new, n_total)
    causal = np.arange(n_total) <= at[:, None]
    return causal & (kind[:, at, None] == kind[:, None, :])
