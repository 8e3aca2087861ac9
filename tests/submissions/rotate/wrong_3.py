"""Wrong: the first half is overwritten before the second half reads it."""

import numpy as np


def rotate(x, positions, base=10000.0):
    half = x.shape[-1] // 2
    angle = np.asarray(positions)[:, None] * base ** (-np.arange(half) / half)
    out = x.copy()
    out[..., :half] = out[..., :half] * np.cos(angle) - out[..., half:] * np.sin(angle)
    out[..., half:] = out[..., :half] * np.sin(angle) + out[..., half:] * np.cos(angle)
    return out
