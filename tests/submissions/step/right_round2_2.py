"""einsum with the weights seen as (d_model, heads, head_dim), and its own attention head by head."""

import numpy as np


def step(x, wq, wk, wv, cache, n_heads, n_kv_heads):
    n, d_model = x.shape
    d = wq.shape[1] // n_heads
    q = np.einsum("nm,mhd->hnd", x, wq.reshape(d_model, n_heads, d))
    k = np.einsum("nm,mhd->hnd", x, wk.reshape(d_model, n_kv_heads, d))
    v = np.einsum("nm,mhd->hnd", x, wv.reshape(d_model, n_kv_heads, d))
    k, v = cache.append(k, v)
    t = k.shape[1]
    out = np.zeros((n, n_heads * d), dtype=q.dtype)
    for h in range(n_heads):
        g = h // (n_heads // n_kv_heads)
        for i in range(n):
            seen = t - n + i + 1
            s = k[g, :seen] @ q[h, i] / d**0.5
            p = np.exp(s - s.max())
            out[i, h * d : (h + 1) * d] = p @ v[g, :seen] / p.sum()
    return out
