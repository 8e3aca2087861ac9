import numpy as np


def packed_mask(lengths):
    if len(lengths) == 0:
        return np.zeros((0, 0), dtype=bool)
    first, rest = np.tri(lengths[0]) > 0, packed_mask(lengths[1:])
    a, b = len(first), len(rest)
    return np.block([[first, np.zeros((a, b), dtype=bool)], [np.zeros((b, a), dtype=bool), rest]])
