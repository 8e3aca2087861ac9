"""Raises only when n_heads is larger: fewer query heads than KV heads pass silently."""

import numpy as np


def repeat_kv(x, n_heads):
    if n_heads > x.shape[0] and n_heads % x.shape[0]:
        raise ValueError("n_heads must be a multiple of n_kv_heads")
    return np.repeat(x, n_heads // x.shape[0], axis=0)
