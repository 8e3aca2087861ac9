"""Wrong: takes the positions for a contiguous run from the first one, whatever their order."""

import numpy as np


def rotate(x, positions, base=10000.0):
    half = x.shape[-1] // 2
    start = positions[0] if len(positions) else 0
    angle = (start + np.arange(x.shape[1]))[:, None] * base ** (-np.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle)], axis=-1)
