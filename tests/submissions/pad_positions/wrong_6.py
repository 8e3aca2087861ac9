# Returns floats, not ints, for any input.
import numpy as np


def pad_positions(attention_mask):
    out = np.zeros(attention_mask.shape)
    for b, row in enumerate(attention_mask):
        n = int(row.sum())
        out[b, len(row) - n :] = np.arange(n)
    return out
