"""Wrong: strictly earlier keys only, off by one: a query does not see itself."""

import numpy as np


def offset_mask(n_new, n_total):
    positions = np.arange(n_total - n_new, n_total)
    return np.arange(n_total)[None, :] < positions[:, None]
