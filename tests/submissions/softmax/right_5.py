"""Unusual: recursion down to single rows, finite entries only, zeros scattered elsewhere."""

import numpy as np


def softmax(x):
    if x.ndim > 1:
        out = np.empty_like(x)
        for i, part in enumerate(x):
            out[i] = softmax(part)
        return out
    out = np.zeros_like(x)
    (seen,) = np.nonzero(x > -np.inf)
    weights = np.exp(x[seen] - np.amax(x[seen]))
    out[seen] = weights / weights.sum()
    return out
