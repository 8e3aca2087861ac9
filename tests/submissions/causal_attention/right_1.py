"""Unusual: adds a bias matrix of 0 and -inf instead of using np.where."""

import numpy as np


def causal_attention(q, k, v):
    n, d = q.shape[1:]
    bias = np.zeros((n, n))
    bias[np.triu_indices(n, k=1)] = -np.inf
    scores = q @ k.swapaxes(-1, -2) / d**0.5 + bias
    scores = np.exp(scores - scores.max(axis=-1, keepdims=True, initial=-np.inf))
    return scores / scores.sum(axis=-1, keepdims=True) @ v
