import numpy as np


def pad_positions(attention_mask):
    mask = np.asarray(attention_mask).astype(np.int64)
    return np.where(mask == 1, mask.cumsum(axis=1) - 1, 0)
