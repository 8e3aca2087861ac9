"""The running maximum starts at 0: strongly negative scores all underflow to 0 / 0."""

import numpy as np


def streamed_attention(q, k, v, block):
    m, total, acc = np.float32(0), np.float32(0), np.zeros(v.shape[1], np.float32)
    qf = q.astype(np.float32) / np.float32(np.sqrt(q.shape[0]))
    for i in range(0, len(k), block):
        s = k[i : i + block].astype(np.float32) @ qf
        new = max(m, s.max())
        p, fix = np.exp(s - new), np.exp(m - new)
        total, acc, m = total * fix + p.sum(), acc * fix + p @ v[i : i + block].astype(np.float32), new
    return acc / total
