# WRONG: columns in which every row has a pad are cut off first: the result is narrower than the mask (every row padded).
import numpy as np


def pad_positions(attention_mask):
    mask = np.asarray(attention_mask)
    mask = mask[:, np.any(mask == 1, axis=0)]
    return np.where(mask == 1, np.cumsum(mask, axis=1) - 1, 0)
