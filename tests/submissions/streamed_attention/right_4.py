"""Partial results with their log-sums, folded pairwise by functools.reduce."""

from functools import reduce

import numpy as np


def streamed_attention(q, k, v, block):
    q32 = np.array(q, dtype=np.float32)
    root = np.float32(np.sqrt(q32.shape[0]))

    def one_block(start):
        rows = slice(start, start + block)
        scores = k[rows].astype(np.float32).dot(q32) / root
        peak = scores.max()
        weights = np.exp(scores - peak)
        return peak, weights.sum(dtype=np.float32), weights.dot(v[rows].astype(np.float32))

    def merge(a, b):
        peak = np.maximum(a[0], b[0])
        left, right = np.exp(a[0] - peak), np.exp(b[0] - peak)
        return peak, a[1] * left + b[1] * right, a[2] * left + b[2] * right

    _, total, weighted = reduce(merge, map(one_block, range(0, k.shape[0], block)))
    return weighted / total
