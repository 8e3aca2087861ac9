"""Wrong: repeats along tokens and reshapes, so tokens of a head are doubled instead of the head."""

import numpy as np


def repeat_kv(x, n_heads):
    n_kv_heads, n_total, head_dim = x.shape
    if n_heads % n_kv_heads:
        raise ValueError("n_heads must be a multiple of n_kv_heads")
    return np.repeat(x, n_heads // n_kv_heads, axis=1).reshape(n_heads, n_total, head_dim)
