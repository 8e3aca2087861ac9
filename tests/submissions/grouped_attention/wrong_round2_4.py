"""No maximum is subtracted: overflows for large scores."""

import numpy as np


def grouped_attention(q, k, v):
    n_heads, n, d = q.shape
    kv, t, _ = k.shape
    s = np.einsum("kgnd,ktd->kgnt", q.reshape(kv, n_heads // kv, n, d), k) / np.sqrt(d)
    p = np.exp(s) * np.tri(n, t, t - n)
    p = p / p.sum(axis=-1, keepdims=True)
    return np.einsum("kgnt,ktd->kgnd", p, v).reshape(n_heads, n, d)
