# WRONG: sequences are told apart by even and odd number only: the third sees the first (two sequences with tokens whose numbers differ by an even count, as [2, 3, 4] or [2, 0, 3]).
import numpy as np


def packed_mask(lengths):
    n = sum(lengths)
    owner = np.repeat(np.arange(len(lengths)) % 2, np.array(lengths, dtype=int))
    return (owner[:, None] == owner) & np.tri(n, dtype=bool)
