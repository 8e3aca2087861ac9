"""Sums in int32, which overflows from n = 65,536."""

import numpy as np


def projection_counts(n):
    return int(np.arange(1, n + 1, dtype=np.int32).sum(dtype=np.int32)), n
