"""Unusual: decodes, one step per token for all heads at once, and stacks the rows at the end."""

import numpy as np


def causal_attention(q, k, v):
    out = np.empty_like(q)
    scaled = k * k.dtype.type(1 / np.sqrt(k.shape[-1]))
    for t in range(q.shape[1]):
        s = np.matmul(scaled[:, : t + 1], q[:, t, :, None])[..., 0]
        s = np.exp(s - s.max(1)[:, None])
        out[:, t] = (s[:, None] @ v[:, : t + 1])[:, 0] / s.sum(1)[:, None]
    return out
