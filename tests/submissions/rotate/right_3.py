"""Unusual: x * cos + rotate_half(x) * sin with doubled tables, in long double."""

import numpy as np


def rotate_half(x):
    a, b = np.split(x, 2, axis=-1)
    return np.concatenate([-b, a], axis=-1)


def rotate(x, positions, base=10000.0):
    d = x.shape[-1]
    inv_freq = np.longdouble(base) ** (-np.arange(0, d, 2, dtype=np.longdouble) / d)
    angles = np.outer(np.asarray(positions, dtype=np.longdouble), inv_freq)
    angles = np.hstack([angles, angles])
    return x * np.cos(angles) + rotate_half(x) * np.sin(angles)
