"""Unusual: rotates and appends one token after the other; an empty chunk is appended as it is."""

import numpy as np


def append_rotated(cache, k_new, v_new, base=10000.0):
    result = None
    d = k_new.shape[-1]
    speed = base ** (-np.arange(0, d, 2) / d)
    for t in range(k_new.shape[1]):
        cos, sin = np.cos(len(cache) * speed), np.sin(len(cache) * speed)
        a, b = k_new[:, t, : d // 2], k_new[:, t, d // 2 :]
        row = np.hstack([a * cos - b * sin, b * cos + a * sin])
        result = cache.append(row[:, None].astype(k_new.dtype), v_new[:, t : t + 1])
    return cache.append(k_new, v_new) if result is None else result
