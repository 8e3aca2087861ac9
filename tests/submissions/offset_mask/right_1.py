"""Unusual: np.tri with an offset diagonal."""

import numpy as np


def offset_mask(n_new, n_total):
    return np.tri(n_new, n_total, n_total - n_new, dtype=bool)
