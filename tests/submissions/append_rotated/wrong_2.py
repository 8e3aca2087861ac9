"""Wrong: stores raw keys and rotates the whole cache on the way out, so the stored keys are not rotated."""

import numpy as np


def append_rotated(cache, k_new, v_new, base=10000.0):
    k, v = cache.append(k_new, v_new)
    half = k.shape[-1] // 2
    angle = np.arange(k.shape[1])[:, None] * base ** (-np.arange(half) / half)
    a, b = k[..., :half], k[..., half:]
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle)], axis=-1), v
