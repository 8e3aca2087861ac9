"""Multiplies by a Kronecker averaging matrix."""

import numpy as np


def pool_kv_heads(w, n_heads, n_kv_heads):
    group, d = n_heads // n_kv_heads, w.shape[1] // n_heads
    return w @ np.kron(np.eye(n_kv_heads), np.kron(np.full((group, 1), 1 / group), np.eye(d)))
