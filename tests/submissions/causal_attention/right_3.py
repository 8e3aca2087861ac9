"""Unusual: einsum in long double, with the weights zeroed before they are normalised."""

import numpy as np


def causal_attention(q, k, v):
    q, k, v = (a.astype(np.longdouble) for a in (q, k, v))
    n = q.shape[1]
    s = np.einsum("hid,hjd->hij", q, k) / np.sqrt(np.longdouble(q.shape[2]))
    seen = np.arange(n)[:, None] >= np.arange(n)[None, :]
    top = np.max(s, axis=2, keepdims=True, where=seen, initial=-np.inf)
    e = np.exp(np.where(seen, s - top, -np.inf))
    return np.einsum("hij,hjd->hid", e, v) / np.einsum("hij->hi", e)[..., None]
