"""Unusual: fills an empty array in a strided way, one member of each group at a time; the error comes from np."""

import numpy as np


def repeat_kv(x, n_heads):
    np.empty(n_heads, dtype=np.int8).reshape(len(x), -1)  # raises ValueError when it does not divide
    group = n_heads // len(x)
    out = np.empty((n_heads, *x.shape[1:]), dtype=x.dtype)
    for member in range(group):
        out[member::group] = x
    return out
