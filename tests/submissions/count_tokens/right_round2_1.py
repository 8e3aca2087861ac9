"""Counts by iterating over the token axis."""

import numpy as np


def count_tokens(k):
    return sum(1 for _ in np.moveaxis(k, 1, 0))
