import numpy as np


def packed_mask(lengths):
    # query i sees start(i) <= t <= i
    ends = np.cumsum(np.asarray(lengths, dtype=int))
    n = int(ends[-1]) if ends.size else 0
    i = np.arange(n)
    which = np.searchsorted(ends, i, side="right")
    starts = np.concatenate([[0], ends]).astype(int)[which]
    return np.logical_and(starts[:, None] <= i, i <= i[:, None])
