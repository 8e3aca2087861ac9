"""Unusual: splits into a list of heads and averages slices of the list."""

import numpy as np


def pool_kv_heads(w, n_heads, n_kv_heads):
    heads = np.split(w, n_heads, axis=1)
    group = n_heads // n_kv_heads
    return np.hstack([np.mean(heads[start : start + group], axis=0) for start in range(0, n_heads, group)])
