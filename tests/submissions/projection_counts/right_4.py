"""Unusual: NumPy int64 sums, in a list."""

import numpy as np


def projection_counts(n):
    steps = np.arange(1, n + 1, dtype=np.int64)
    return [steps.sum(), np.ones_like(steps).sum()]
