# The list is emptied by pop: the input is changed.
import numpy as np


def packed_mask(lengths):
    n = sum(lengths)
    out = np.zeros((n, n), dtype=bool)
    at = 0
    while lengths:
        m = lengths.pop(0)
        out[at : at + m, at : at + m] = np.tri(m, dtype=bool)
        at += m
    return out
