"""Unusual: a copy of the keys, rotated pair by pair with 2 x 2 matrices."""

import math

import numpy as np


def append_rotated(cache, k_new, v_new, base=10000.0):
    k = np.array(k_new)
    half = k.shape[2] // 2
    for t in range(k.shape[1]):
        position = len(cache) + t
        for i in range(half):
            angle = position * base ** (-i / half)
            turn = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
            k[:, t, [i, i + half]] = k_new[:, t, [i, i + half]] @ turn.T
    k, v = cache.append(k, v_new)
    return k, v
