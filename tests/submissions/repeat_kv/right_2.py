"""Unusual: a read-only broadcast view, reshaped."""

import numpy as np


def repeat_kv(x, n_heads):
    n_kv_heads, n_total, head_dim = x.shape
    if n_heads % n_kv_heads != 0:
        raise ValueError("heads do not divide")
    group = n_heads // n_kv_heads
    return np.broadcast_to(x[:, None], (n_kv_heads, group, n_total, head_dim)).reshape(n_heads, n_total, head_dim)
