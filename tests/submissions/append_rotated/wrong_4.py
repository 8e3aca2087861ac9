"""Wrong: rotates the caller's keys in place before it appends them."""

import numpy as np


def append_rotated(cache, k_new, v_new, base=10000.0):
    half = k_new.shape[-1] // 2
    positions = np.arange(len(cache), len(cache) + k_new.shape[1])
    angle = positions[:, None] * base ** (-np.arange(half) / half)
    a, b = k_new[..., :half].copy(), k_new[..., half:].copy()
    k_new[..., :half] = a * np.cos(angle) - b * np.sin(angle)
    k_new[..., half:] = a * np.sin(angle) + b * np.cos(angle)
    return cache.append(k_new, v_new)
