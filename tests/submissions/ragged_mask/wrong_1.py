# A pad query sees nothing at all (its softmax would be 0/0): wrong when a query column is a pad.
import numpy as np


def ragged_mask(attention_mask, n_new):
    real = attention_mask.astype(bool)
    n_total = real.shape[1]
    causal = np.tri(n_total, dtype=bool)[n_total - n_new :]
    return causal & real[:, None, :]
