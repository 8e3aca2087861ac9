# A length of 0 counts as 1 in the running start: every sequence after an empty one ([2, 0, 3]) is off by one.
import numpy as np


def packed_mask(lengths):
    n = sum(lengths)
    out = np.zeros((n, n), dtype=bool)
    start = 0
    for m in lengths:
        for i in range(start, min(start + m, n)):
            out[i, start : i + 1] = True
        start += max(m, 1)
    return out
