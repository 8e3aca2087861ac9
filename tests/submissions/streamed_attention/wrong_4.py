"""Reads all keys and values at once and takes an ordinary softmax; block is not used."""

import numpy as np


def streamed_attention(q, k, v, block):
    k32, v32 = k.astype(np.float32), v.astype(np.float32)
    scores = k32 @ q.astype(np.float32) / np.float32(np.sqrt(q.shape[-1]))
    weights = np.exp(scores - scores.max())
    return weights @ v32 / weights.sum()
