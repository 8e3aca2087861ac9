"""Accumulates in the dtype of v, which may be float16, and turns only the result into float32."""

import numpy as np


def streamed_attention(q, k, v, block):
    q = q.astype(np.float32) / np.float32(np.sqrt(q.shape[-1]))
    biggest = np.float32(-np.inf)
    total = v.dtype.type(0)
    acc = np.zeros(v.shape[-1], dtype=v.dtype)
    for start in range(0, k.shape[0], block):
        vb = v[start : start + block]
        scores = k[start : start + block].astype(np.float32) @ q
        new_biggest = max(biggest, scores.max())
        shrink = np.exp(biggest - new_biggest).astype(v.dtype)
        weights = np.exp(scores - new_biggest).astype(v.dtype)
        total = total * shrink + weights.sum()
        acc = acc * shrink + weights @ vb
        biggest = new_biggest
    return (acc / total).astype(np.float32)
