"""Wrong: reshapes q to (group, n_kv_heads, ...), so neighbouring heads do not share a KV head."""

import numpy as np


def grouped_attention(q, k, v):
    n_heads, n_new, d = q.shape
    n_kv, n_total, _ = k.shape
    s = q.reshape(n_heads // n_kv, n_kv, n_new, d) @ k.transpose(0, 2, 1) / np.sqrt(d)
    s = np.where(np.tri(n_new, n_total, n_total - n_new, dtype=bool), s, -np.inf)
    w = np.exp(s - s.max(-1, keepdims=True, initial=-np.inf))
    return (w / w.sum(-1, keepdims=True) @ v).reshape(n_heads, n_new, d)
