"""Never uses a base below the default one."""

import numpy as np


def rotate(x, positions, base=10000.0):
    half = x.shape[-1] // 2
    angle = np.asarray(positions)[:, None] * max(base, 10000.0) ** (-np.arange(half) / half)
    c, s = np.cos(angle), np.sin(angle)
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * c - b * s, a * s + b * c], axis=-1)
