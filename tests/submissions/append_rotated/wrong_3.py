"""Wrong: base is accepted but 10000 is used."""

import numpy as np


def rotate(x, positions, base=10000.0):
    half = x.shape[-1] // 2
    angle = positions[:, None] * base ** (-np.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle)], axis=-1)


def append_rotated(cache, k_new, v_new, base=10000.0):
    positions = np.arange(len(cache), len(cache) + k_new.shape[1])
    return cache.append(rotate(k_new, positions), v_new)
