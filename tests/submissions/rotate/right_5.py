"""Unusual: works on a (2, half) view of the last axis, writes with out= and keeps the dtype of x."""

import numpy as np


def rotate(x, positions, base=10000.0):
    n_heads, n_tokens, d = x.shape
    pairs = x.reshape(n_heads, n_tokens, 2, d // 2)
    theta = np.asarray(positions, np.float64).reshape(1, n_tokens, 1)
    theta = theta * np.exp(np.linspace(0, -np.log(base), d // 2, endpoint=False))
    cos, sin = np.cos(theta).astype(x.dtype), np.sin(theta).astype(x.dtype)
    out = np.empty(pairs.shape, x.dtype)
    np.multiply(pairs[:, :, 0], cos, out=out[:, :, 0])
    out[:, :, 0] -= pairs[:, :, 1] * sin
    np.multiply(pairs[:, :, 0], sin, out=out[:, :, 1])
    out[:, :, 1] += pairs[:, :, 1] * cos
    return out.reshape(x.shape)
