import numpy as np


def pad_positions(attention_mask):
    mask = np.asarray(attention_mask)
    batch, n = mask.shape
    out = np.zeros((batch, n), dtype=int)
    for b in range(batch):
        count = int(np.count_nonzero(mask[b]))
        out[b, n - count :] = range(count)
    return out
