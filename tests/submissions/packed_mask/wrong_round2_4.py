# WRONG: counts the starts at each column, so an empty LAST sequence adds a row and a column (last length 0).
import numpy as np


def packed_mask(lengths):
    starts = np.cumsum([0] + list(lengths))[:-1] if len(lengths) else np.zeros(0, dtype=int)
    owner = np.cumsum(np.bincount(starts, minlength=sum(lengths)))
    return (owner[:, None] == owner) & np.tri(len(owner), dtype=bool)
