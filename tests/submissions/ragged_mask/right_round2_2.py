# first token of each row; a query's lowest key
import numpy as np


def ragged_mask(attention_mask, n_new):
    real = np.array(attention_mask, dtype=bool)
    n_total = real.shape[1]
    key = np.arange(n_total)
    query = key[n_total - n_new :, None]
    first = (n_total - real.sum(axis=1))[:, None, None]
    low = np.minimum(first, query)
    low = np.where(query < first, query, low)
    return (low <= key) & (key <= query)
