"""Wrong: interleaved pairing, 2i with 2i + 1."""

import numpy as np


def rotate(x, positions, base=10000.0):
    d = x.shape[-1]
    angle = np.asarray(positions)[:, None] * base ** (-np.arange(0, d, 2) / d)
    out = np.empty_like(x)
    out[..., 0::2] = x[..., 0::2] * np.cos(angle) - x[..., 1::2] * np.sin(angle)
    out[..., 1::2] = x[..., 0::2] * np.sin(angle) + x[..., 1::2] * np.cos(angle)
    return out
