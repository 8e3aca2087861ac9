"""Wrong: looks up a table of max(positions) + 1 rows, so no tokens at all raises (max of nothing)."""

import numpy as np


def rotate(x, positions, base=10000.0):
    half = x.shape[-1] // 2
    table = np.arange(np.max(positions) + 1)[:, None] * base ** (-np.arange(half) / half)
    angle = table[np.asarray(positions)]
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle)], axis=-1)
