"""Wrong: every new token attends over the whole chunk, one query at a time over all keys, the future included."""

import numpy as np

from kvlab.attention import attention


def step(x, wq, wk, wv, cache, n_heads, n_kv_heads):
    head_dim = wq.shape[1] // n_heads
    q = (x @ wq).reshape(len(x), n_heads, head_dim).transpose(1, 0, 2)
    k_new = (x @ wk).reshape(len(x), n_kv_heads, head_dim).transpose(1, 0, 2)
    v_new = (x @ wv).reshape(len(x), n_kv_heads, head_dim).transpose(1, 0, 2)
    k, v = cache.append(k_new, v_new)
    out = np.zeros((len(x), n_heads * head_dim), dtype=x.dtype)
    for i in range(len(x)):
        out[i] = attention(q[:, i : i + 1], k, v).reshape(n_heads * head_dim)
    return out
