"""Unusual: a helper in the exercise's own shape, called with keywords; rotated keys stay float64."""

import numpy as np


def rotate(x, positions, base):
    half = x.shape[-1] // 2
    angles = positions[:, None] / np.power(base, np.arange(half) / half)
    first, second = x[..., :half], x[..., half:]
    turned = np.empty(x.shape, dtype=np.float64)
    turned[..., :half] = first * np.cos(angles) - second * np.sin(angles)
    turned[..., half:] = second * np.cos(angles) + first * np.sin(angles)
    return turned


def append_rotated(cache, k_new, v_new, base=10000.0):
    start = len(cache)
    stop = start + k_new.shape[1]
    return cache.append(rotate(k_new, positions=np.arange(start, stop), base=base), v_new)
