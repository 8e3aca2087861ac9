"""Wrong: positions count from 0 in each chunk, right only for the first."""

import numpy as np


def append_rotated(cache, k_new, v_new, base=10000.0):
    half = k_new.shape[-1] // 2
    angle = np.arange(k_new.shape[1])[:, None] * base ** (-np.arange(half) / half)
    a, b = k_new[..., :half], k_new[..., half:]
    k_rot = np.concatenate([a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle)], axis=-1)
    return cache.append(k_rot, v_new)
