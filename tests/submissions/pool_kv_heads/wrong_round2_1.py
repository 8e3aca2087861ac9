"""Median instead of mean: the same for groups of one and two."""

import numpy as np


def pool_kv_heads(w, n_heads, n_kv_heads):
    d = w.shape[1] // n_heads
    pooled = np.median(w.reshape(len(w), n_kv_heads, n_heads // n_kv_heads, d), axis=2)
    return pooled.reshape(len(w), n_kv_heads * d)
