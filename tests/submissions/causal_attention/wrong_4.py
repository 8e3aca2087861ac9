"""Wrong: scales the queries in place, so the caller's q is changed (the result is right)."""

import numpy as np


def causal_attention(q, k, v):
    n, d = q.shape[1:]
    q /= np.sqrt(d)
    s = np.where(np.tri(n, dtype=bool), q @ k.transpose(0, 2, 1), -np.inf)
    w = np.exp(s - s.max(-1, keepdims=True))
    return w / w.sum(-1, keepdims=True) @ v
