"""Unusual: complex numbers, each pair is one and is turned by a phase."""

import numpy as np


def rotate(x, positions, base=10000.0):
    half = x.shape[-1] // 2
    z = x[..., :half] + 1j * x[..., half:]
    speed = np.power(float(base), -np.arange(half) / half)
    z = z * np.exp(1j * np.asarray(positions)[:, None] * speed)
    return np.concatenate([z.real, z.imag], axis=-1)
