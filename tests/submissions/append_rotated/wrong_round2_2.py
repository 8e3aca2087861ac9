"""Returns the empty new pair, not the whole cache, when n_new is 0."""

import numpy as np


def append_rotated(cache, k_new, v_new, base=10000.0):
    if k_new.shape[1] == 0:
        return k_new, v_new
    half = k_new.shape[-1] // 2
    angle = (len(cache) + np.arange(k_new.shape[1]))[:, None] * base ** (-np.arange(half) / half)
    c, s = np.cos(angle), np.sin(angle)
    a, b = k_new[..., :half], k_new[..., half:]
    k = np.concatenate([a * c - b * s, a * s + b * c], axis=-1).astype(k_new.dtype)
    return cache.append(k, v_new)
