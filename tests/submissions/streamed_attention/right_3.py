"""Key by key inside each block, and a normalized running mean instead of a sum to divide at the end."""

import numpy as np


def streamed_attention(q, k, v, block):
    scale = np.float32(1.0 / np.sqrt(q.size))
    query = q.astype("f4")
    mean = np.zeros(v.shape[1], "f4")
    top, weight = np.float32(-np.inf), np.float32(0.0)
    for begin in range(0, len(k), block):
        keys, values = k[begin : begin + block], v[begin : begin + block]
        for key, value in zip(keys, values, strict=True):
            score = np.dot(key.astype("f4"), query) * scale
            if score > top:
                weight = weight * np.exp(top - score)
                top = score
            share = np.exp(score - top)
            weight = weight + share
            mean = mean + (value.astype("f4") - mean) * (share / weight)
    return mean
