"""Returns 0 / 1 integers, not bool."""

import numpy as np


def offset_mask(n_new, n_total):
    return np.tril(np.ones((n_new, n_total), dtype=np.int8), n_total - n_new)
