"""Unusual: complex phases, positions from an iterator over the cache length."""

import numpy as np


def append_rotated(cache, k_new, v_new, base=10000.0):
    half = k_new.shape[2] // 2
    p = len(cache) + np.arange(k_new.shape[1])
    turn = np.exp(1j * p[:, None] / base ** (np.arange(half) / half))
    z = (k_new[..., :half] + 1j * k_new[..., half:]) * turn
    return cache.append(np.dstack([z.real, z.imag]).astype(k_new.dtype), v_new)
