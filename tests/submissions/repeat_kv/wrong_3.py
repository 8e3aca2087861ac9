"""Wrong: an assert, which is an AssertionError and not a ValueError."""

import numpy as np


def repeat_kv(x, n_heads):
    assert n_heads % x.shape[0] == 0, "n_heads must be a multiple of n_kv_heads"
    return np.repeat(x, n_heads // x.shape[0], axis=0)
