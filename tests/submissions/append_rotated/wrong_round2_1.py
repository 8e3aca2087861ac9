"""Stores raw keys and rotates only what it returns: the stored keys are wrong."""

import numpy as np


def _rot(x, start, base):
    half = x.shape[-1] // 2
    angle = (start + np.arange(x.shape[1]))[:, None] * base ** (-np.arange(half) / half)
    c, s = np.cos(angle), np.sin(angle)
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * c - b * s, a * s + b * c], axis=-1).astype(x.dtype)


def append_rotated(cache, k_new, v_new, base=10000.0):
    k, v = cache.append(k_new, v_new)
    return _rot(k, 0, base), v
