"""Writes into x when x is float64 already."""

import numpy as np


def rotate(x, positions, base=10000.0):
    out = np.asarray(x, dtype=np.float64)
    half = x.shape[-1] // 2
    angle = np.asarray(positions)[:, None] * base ** (-np.arange(half) / half)
    c, s = np.cos(angle), np.sin(angle)
    a, b = out[..., :half].copy(), out[..., half:].copy()
    out[..., :half] = a * c - b * s
    out[..., half:] = a * s + b * c
    return out
