"""Wrong: scales by the square root of shape[1], which is n_tokens and not head_dim."""

import numpy as np


def causal_attention(q, k, v):
    n = q.shape[1]
    s = q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[1])
    s = np.where(np.tril(np.ones((n, n), dtype=bool)), s, -np.inf)
    w = np.exp(s - s.max(-1, keepdims=True))
    return w / w.sum(-1, keepdims=True) @ v
