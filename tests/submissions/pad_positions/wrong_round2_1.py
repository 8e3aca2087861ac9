# WRONG: the running sum is written into the caller's mask when that is int64 already: the input changes (int64 masks).
import numpy as np


def pad_positions(attention_mask):
    positions = np.asarray(attention_mask, dtype=np.int64)
    np.cumsum(positions, axis=1, out=positions)
    return np.maximum(positions - 1, 0)
