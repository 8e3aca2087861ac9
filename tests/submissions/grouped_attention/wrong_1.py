"""Wrong: broadcasts and reshapes, and the reshape silently copies k and v to n_heads."""

import numpy as np


def grouped_attention(q, k, v):
    n_heads, n_new, d = q.shape
    n_kv, n_total, _ = k.shape
    shape = (n_kv, n_heads // n_kv, n_total, d)
    k = np.broadcast_to(k[:, None], shape).reshape(n_heads, n_total, d)
    v = np.broadcast_to(v[:, None], shape).reshape(n_heads, n_total, d)
    s = q @ k.transpose(0, 2, 1) / np.sqrt(d)
    s = np.where(np.tri(n_new, n_total, n_total - n_new, dtype=bool), s, -np.inf)
    w = np.exp(s - s.max(-1, keepdims=True, initial=-np.inf))
    return w / w.sum(-1, keepdims=True) @ v
