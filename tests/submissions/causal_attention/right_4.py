"""Unusual: online softmax, the keys are read one after the other, no score matrix is ever held."""

import numpy as np


def causal_attention(q, k, v):
    n_heads, n, d = q.shape
    top = np.full((n_heads, n, 1), -np.inf)
    total = np.zeros((n_heads, n, 1))
    acc = np.zeros((n_heads, n, d))
    for j in range(n):
        s = np.sum(q[:, j:] * k[:, j : j + 1], axis=-1, keepdims=True) / np.sqrt(d)
        new_top = np.maximum(top[:, j:], s)
        shrink = np.exp(top[:, j:] - new_top)
        w = np.exp(s - new_top)
        total[:, j:] = total[:, j:] * shrink + w
        acc[:, j:] = acc[:, j:] * shrink + w * v[:, j : j + 1]
        top[:, j:] = new_top
    return acc / total
