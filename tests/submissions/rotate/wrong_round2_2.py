"""Sorts the positions, so an unordered list is rotated wrongly."""

import numpy as np


def rotate(x, positions, base=10000.0):
    half = x.shape[-1] // 2
    angle = np.unique(positions)[:, None] if len(set(map(int, positions))) == len(positions) else np.c_[positions]
    angle = angle * base ** (-np.arange(half) / half)
    c, s = np.cos(angle), np.sin(angle)
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * c - b * s, a * s + b * c], axis=-1)
