"""Rotates the caller's k_new in place."""

import numpy as np


def append_rotated(cache, k_new, v_new, base=10000.0):
    half = k_new.shape[-1] // 2
    angle = (len(cache) + np.arange(k_new.shape[1]))[:, None] * base ** (-np.arange(half) / half)
    c, s = np.cos(angle), np.sin(angle)
    a, b = k_new[..., :half].copy(), k_new[..., half:].copy()
    k_new[..., :half] = a * c - b * s
    k_new[..., half:] = a * s + b * c
    return cache.append(k_new, v_new)
