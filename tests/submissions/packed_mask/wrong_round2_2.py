# WRONG: the caller's list is emptied.
import numpy as np


def packed_mask(lengths):
    n, start = sum(lengths), 0
    mask = np.zeros((n, n), dtype=bool)
    while lengths:
        length = lengths.pop(0)
        mask[start : start + length, start : start + length] = np.tri(length, dtype=bool)
        start += length
    return mask
