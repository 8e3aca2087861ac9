# a query sees from its sequence's start
import numpy as np


def packed_mask(lengths):
    ends = np.cumsum(np.array(lengths, dtype=int))
    at = np.arange(sum(lengths))
    starts = np.r_[0, ends]
    first = starts[np.searchsorted(ends, at, side="right")]
    return (first[:, None] <= at) & (at <= at[:, None])
