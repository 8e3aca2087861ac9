"""Unusual: one (head_dim, head_dim) rotation matrix per token, applied with einsum."""

import numpy as np


def rotate(x, positions, base=10000.0):
    d = x.shape[-1]
    low = np.arange(d // 2)
    high = low + d // 2
    matrices = np.zeros((len(positions), d, d))
    for matrix, p in zip(matrices, positions, strict=True):
        angle = p * base ** (-2.0 * low / d)
        matrix[low, low] = matrix[high, high] = np.cos(angle)
        matrix[low, high] = -np.sin(angle)
        matrix[high, low] = np.sin(angle)
    return np.einsum("tij,htj->hti", matrices, x)
