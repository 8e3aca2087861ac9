"""Unusual: appends and attends token by token; a step without tokens returns an empty array."""

import numpy as np

from kvlab.attention import attention


def step(x, wq, wk, wv, cache, n_heads, n_kv_heads):
    head_dim = wq.shape[1] // n_heads
    rows = [np.zeros((0, n_heads * head_dim), dtype=x.dtype)]
    for t in range(x.shape[0]):
        token = x[t : t + 1]
        q = (token @ wq).reshape(n_heads, 1, head_dim)
        k_new = (token @ wk).reshape(n_kv_heads, 1, head_dim)
        v_new = (token @ wv).reshape(n_kv_heads, 1, head_dim)
        k, v = cache.append(k_new, v_new)
        rows.append(attention(q, k, v).reshape(1, n_heads * head_dim))
    return np.concatenate(rows)
