import numpy as np


def packed_mask(lengths):
    n = int(sum(lengths))
    mask = np.zeros((n, n), dtype=bool)
    start = 0
    for length in lengths:
        mask[start : start + length, start : start + length] = np.tri(length, dtype=bool)
        start += length
    return mask
