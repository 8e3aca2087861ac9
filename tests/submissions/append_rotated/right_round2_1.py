"""Complex phases by absolute position."""

import numpy as np


def append_rotated(cache, k_new, v_new, base=10000.0):
    first, n, half = len(cache), k_new.shape[1], k_new.shape[2] // 2
    z = k_new[:, :, :half] + 1j * k_new[:, :, half:].astype(np.float64)
    z = z * np.exp(1j * np.outer(np.arange(first, first + n), np.power(base, -np.arange(half) / half)))
    return cache.append(np.concatenate([z.real, z.imag], axis=2).astype(k_new.dtype), v_new)
