"""Wrong: built from a nested list, so n_new = 0 has shape (0,)."""

import numpy as np


def offset_mask(n_new, n_total):
    n_past = n_total - n_new
    return np.array([[j <= n_past + i for j in range(n_total)] for i in range(n_new)], dtype=bool)
