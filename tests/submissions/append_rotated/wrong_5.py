"""Wrong: rotates the values as well."""

import numpy as np


def append_rotated(cache, k_new, v_new, base=10000.0):
    half = k_new.shape[-1] // 2
    positions = np.arange(len(cache), len(cache) + k_new.shape[1])
    angle = positions[:, None] * base ** (-np.arange(half) / half)
    cos, sin = np.cos(angle), np.sin(angle)

    def turn(x):
        a, b = np.split(x, 2, axis=-1)
        return np.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)

    return cache.append(turn(k_new), turn(v_new))
