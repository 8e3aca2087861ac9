"""Wrong: float32 angle tables, good for small positions, off by far more than 1e-9 for float64 input."""

import numpy as np


def rotate(x, positions, base=10000.0):
    half = x.shape[-1] // 2
    speed = (base ** (-np.arange(half) / half)).astype(np.float32)
    angle = np.asarray(positions, dtype=np.float32)[:, None] * speed
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle)], axis=-1)
