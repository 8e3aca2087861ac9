# The input is changed: the cumulative sum is written into attention_mask.
import numpy as np


def pad_positions(attention_mask):
    positions = np.cumsum(attention_mask, axis=1, out=attention_mask)
    return np.maximum(positions - 1, 0).astype(int)
