"""Angles in the dtype of x: for float32 they are too coarse at large positions."""

import numpy as np


def rotate(x, positions, base=10000.0):
    half = x.shape[-1] // 2
    freq = (base ** (-np.arange(half) / half)).astype(x.dtype)
    angle = np.asarray(positions).astype(x.dtype)[:, None] * freq
    c, s = np.cos(angle), np.sin(angle)
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * c - b * s, a * s + b * c], axis=-1)
