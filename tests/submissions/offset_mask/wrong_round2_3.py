"""Counts columns in uint8: wraps from 256 tokens on."""

import numpy as np


def offset_mask(n_new, n_total):
    cols = np.arange(n_total).astype(np.uint8)
    rows = np.arange(n_total - n_new, n_total)
    return cols[None, :] <= rows[:, None]
