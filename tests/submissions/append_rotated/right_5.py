"""Unusual: the rotate_half form with the half swapped by np.roll and a sign vector."""

import numpy as np


def append_rotated(cache, k_new, v_new, base=10000.0):
    n_new, d = k_new.shape[1:]
    positions = np.fromiter(range(len(cache), len(cache) + n_new), dtype=float, count=n_new)
    angles = np.tile(np.multiply.outer(positions, base ** (-2 * np.arange(d // 2) / d)), 2)
    sign = np.repeat([-1.0, 1.0], d // 2)
    k_rot = k_new * np.cos(angles) + np.roll(k_new, d // 2, axis=-1) * sign * np.sin(angles)
    return cache.append(k_rot.astype(k_new.dtype, copy=False), v_new)
