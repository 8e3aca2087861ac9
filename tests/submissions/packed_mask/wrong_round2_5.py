# WRONG: a length of 0 ends the list: the sequences after it see nothing at all ([2, 0, 3]).
import numpy as np


def packed_mask(lengths):
    n, start = sum(lengths), 0
    mask = np.zeros((n, n), dtype=bool)
    for length in lengths:
        if not length:
            break
        mask[start : start + length, start : start + length] = np.tri(length, dtype=bool)
        start += length
    return mask
