"""Unusual: einsum with a one-hot matrix of who reads whom, in float64."""

import numpy as np


def repeat_kv(x, n_heads):
    if n_heads not in range(x.shape[0], n_heads + 1, x.shape[0]):
        raise ValueError("n_heads must be a multiple of n_kv_heads")
    reads = np.kron(np.eye(x.shape[0]), np.ones((n_heads // x.shape[0], 1)))
    return np.einsum("hg,gtd->htd", reads, x)
