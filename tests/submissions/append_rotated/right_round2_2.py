"""Scalar loops over heads, tokens and pairs."""

import math


def append_rotated(cache, k_new, v_new, base=10000.0):
    k = k_new.copy()
    heads, n, d = k.shape
    first = len(cache)
    for h in range(heads):
        for t in range(n):
            for i in range(d // 2):
                phi = (first + t) / base ** (2 * i / d)
                a, b = float(k_new[h, t, i]), float(k_new[h, t, i + d // 2])
                k[h, t, i] = a * math.cos(phi) - b * math.sin(phi)
                k[h, t, i + d // 2] = b * math.cos(phi) + a * math.sin(phi)
    return cache.append(k, v_new)
