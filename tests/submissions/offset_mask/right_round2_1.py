"""The negation of an upper triangle."""

import numpy as np


def offset_mask(n_new, n_total):
    return ~np.triu(np.ones((n_new, n_total), dtype=bool), n_total - n_new + 1)
