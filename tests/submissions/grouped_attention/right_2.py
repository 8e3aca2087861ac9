"""Unusual: a loop over query heads, each with a 2-d view of its KV head."""

import numpy as np


def grouped_attention(q, k, v):
    n_heads, n_new, d = q.shape
    n_total = k.shape[1]
    hidden = np.arange(n_total) > np.arange(n_total - n_new, n_total)[:, None]
    out = np.zeros_like(q)
    for h in range(n_heads):
        g = h * k.shape[0] // n_heads
        s = q[h] @ k[g].T / np.sqrt(d)
        s[hidden] = -np.inf
        s = np.exp(s - np.max(s, axis=1, keepdims=True, initial=-np.inf))
        out[h] = s @ v[g] / s.sum(axis=1, keepdims=True)
    return out
