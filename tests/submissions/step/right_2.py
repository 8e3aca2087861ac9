"""Unusual: einsum over weights viewed as (d_model, heads, head_dim)."""

import numpy as np

from kvlab.attention import attention


def step(x, wq, wk, wv, cache, n_heads, n_kv_heads):
    d_model, width = wq.shape

    def project(w, heads):
        return np.einsum("nm,mhd->hnd", x, w.reshape(d_model, heads, width // n_heads))

    q = project(wq, n_heads)
    pair = cache.append(project(wk, n_kv_heads), project(wv, n_kv_heads))
    out = attention(q, *pair)
    return np.concatenate(list(out), axis=-1)
