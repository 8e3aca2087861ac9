"""One fused projection, then split into heads."""

import numpy as np

from kvlab.attention import attention


def step(x, wq, wk, wv, cache, n_heads, n_kv_heads):
    d = wq.shape[1] // n_heads
    total = n_heads + 2 * n_kv_heads
    fused = (x @ np.hstack([wq, wk, wv])).reshape(x.shape[0], total, d).transpose(1, 0, 2)
    q, k, v = np.split(fused, [n_heads, n_heads + n_kv_heads])
    out = attention(q, *cache.append(k, v))
    return np.moveaxis(out, 0, 1).reshape(x.shape[0], n_heads * d)
