"""Unusual: loops over columns, every output column is the mean of a strided slice, Fortran order, long double."""

import numpy as np


def pool_kv_heads(w, n_heads, n_kv_heads):
    head_dim = w.shape[1] // n_heads
    span = head_dim * (n_heads // n_kv_heads)
    out = np.zeros((w.shape[0], n_kv_heads * head_dim), dtype=np.longdouble, order="F")
    for g in range(n_kv_heads):
        for i in range(head_dim):
            out[:, g * head_dim + i] = w[:, g * span + i : (g + 1) * span : head_dim].mean(axis=1, dtype=np.longdouble)
    return out
