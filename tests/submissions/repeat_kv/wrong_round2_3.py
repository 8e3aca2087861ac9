"""Fills a float32 buffer, so float64 input loses digits."""

import numpy as np


def repeat_kv(x, n_heads):
    group, rest = divmod(n_heads, x.shape[0])
    if rest:
        raise ValueError("n_heads must be a multiple of n_kv_heads")
    out = np.empty((n_heads, *x.shape[1:]), dtype=np.float32)
    for h in range(n_heads):
        out[h] = x[h // group]
    return out
