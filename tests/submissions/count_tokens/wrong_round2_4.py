"""Counts distinct tokens: wrong when two tokens have the same key."""

import numpy as np


def count_tokens(k):
    rows = np.moveaxis(k, 1, 0).reshape(k.shape[1], k.shape[0] * k.shape[2])
    return len(np.unique(rows, axis=0))
