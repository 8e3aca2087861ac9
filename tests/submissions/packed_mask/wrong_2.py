# Causal over the whole row: the second sequence sees the first.
import numpy as np


def packed_mask(lengths):
    n = sum(lengths)
    return np.tril(np.ones((n, n), dtype=bool))
