"""Rescales the accumulator but not the running sum when the maximum grows."""

import numpy as np


def streamed_attention(q, k, v, block):
    q = q.astype(np.float32) / np.float32(np.sqrt(q.shape[-1]))
    biggest = np.float32(-np.inf)
    total = np.float32(0)
    acc = np.zeros(v.shape[-1], dtype=np.float32)
    for start in range(0, k.shape[0], block):
        kb = k[start : start + block].astype(np.float32)
        vb = v[start : start + block].astype(np.float32)
        scores = kb @ q
        new_biggest = max(biggest, scores.max())
        weights = np.exp(scores - new_biggest)
        total = total + weights.sum()
        acc = acc * np.exp(biggest - new_biggest) + weights @ vb
        biggest = new_biggest
    return acc / total
