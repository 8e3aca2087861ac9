"""Complex multiplication."""

import numpy as np


def rotate(x, positions, base=10000.0):
    half = x.shape[-1] // 2
    z = x[..., :half] + 1j * x[..., half:].astype(np.float64)
    z = z * np.exp(1j * np.outer(np.asarray(positions, dtype=np.float64), base ** (-np.arange(half) / half)))
    return np.concatenate([z.real, z.imag], axis=-1)
