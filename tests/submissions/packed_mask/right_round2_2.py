# fills row by row, backwards
import numpy as np


def packed_mask(lengths):
    n = int(sum(lengths))
    mask = np.zeros((n, n), dtype=bool)
    end = n
    for length in reversed(lengths):
        start = end - length
        for i in range(start, end):
            mask[i, start : i + 1] = True
        end = start
    return mask
