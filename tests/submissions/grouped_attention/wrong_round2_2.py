"""Folds the group into the rows but repeats the mask in the wrong order: right for n_new = 1 or group 1."""

import numpy as np


def grouped_attention(q, k, v):
    n_heads, n, d = q.shape
    kv, t, _ = k.shape
    group = n_heads // kv
    s = q.reshape(kv, group * n, d) @ k.transpose(0, 2, 1) / np.sqrt(d)
    mask = np.repeat(np.tri(n, t, t - n, dtype=bool), group, axis=0)
    s = np.where(mask, s, -np.inf)
    p = np.exp(s - s.max(axis=-1, keepdims=True))
    p /= p.sum(axis=-1, keepdims=True)
    return (p @ v).reshape(n_heads, n, d)
