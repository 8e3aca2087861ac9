"""Wrong: ones and zeros in float, not bool."""

import numpy as np


def offset_mask(n_new, n_total):
    return np.tril(np.ones((n_new, n_total)), k=n_total - n_new)
