# WRONG: the lengths themselves serve as the sequences' names: two sequences of equal length see each other.
import numpy as np


def packed_mask(lengths):
    n = sum(lengths)
    owner = np.repeat(np.array(lengths, dtype=int), np.array(lengths, dtype=int))
    return (owner[:, None] == owner) & np.tri(n, dtype=bool)
