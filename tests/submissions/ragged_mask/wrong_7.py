# The padding of the longest pad run is used for all rows: rows with fewer pads lose tokens.
import numpy as np


def ragged_mask(attention_mask, n_new):
    batch, n_total = attention_mask.shape
    n_pad = int((attention_mask == 0).sum(axis=1).max())
    rows = np.arange(n_total - n_new, n_total)[:, None]
    cols = np.arange(n_total)[None, :]
    one = ((cols >= n_pad) & (cols <= rows)) | (cols == rows)
    return np.broadcast_to(one, (batch, n_new, n_total)).copy()
