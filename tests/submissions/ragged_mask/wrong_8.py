# The mask is right, but each row of the input is multiplied by column numbers in place: the input is changed.
import numpy as np


def ragged_mask(attention_mask, n_new):
    batch, n_total = attention_mask.shape
    out = np.zeros((batch, n_new, n_total), dtype=bool)
    for b, row in enumerate(attention_mask):
        row *= np.arange(1, n_total + 1, dtype=row.dtype)
        for i in range(n_new):
            q = n_total - n_new + i
            if row[q]:
                out[b, i] = (row > 0) & (row <= row[q])
            out[b, i, q] = True
    return out
