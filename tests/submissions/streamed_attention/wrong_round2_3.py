"""Accumulates in the dtype of v: too coarse for float16."""

import numpy as np


def streamed_attention(q, k, v, block):
    m, total, acc = -np.inf, v.dtype.type(0), np.zeros(v.shape[1], v.dtype)
    qf = q.astype(np.float32) / np.float32(np.sqrt(q.shape[0]))
    for i in range(0, len(k), block):
        s = k[i : i + block].astype(np.float32) @ qf
        new = max(m, s.max())
        p, fix = np.exp(s - new).astype(v.dtype), v.dtype.type(np.exp(m - new))
        total = total * fix + p.sum()
        acc = acc * fix + p @ v[i : i + block]
        m = new
    return acc / total
