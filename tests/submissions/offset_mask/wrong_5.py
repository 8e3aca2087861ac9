"""Wrong: lets every query look at the past, but ignores causality by one: diagonal one too far."""

import numpy as np


def offset_mask(n_new, n_total):
    n_past = n_total - n_new
    past = np.ones((n_new, n_past), dtype=bool)
    new = np.tri(n_new, n_new, 1, dtype=bool)
    return np.hstack([past, new])
