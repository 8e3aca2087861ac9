"""Unusual: four nested loops and the math module."""

import math

import numpy as np


def rotate(x, positions, base=10000.0):
    n_heads, n_tokens, head_dim = x.shape
    half = head_dim // 2
    out = np.zeros_like(x)
    for h in range(n_heads):
        for t in range(n_tokens):
            for i in range(half):
                angle = int(positions[t]) / base ** (2 * i / head_dim)
                a, b = float(x[h, t, i]), float(x[h, t, i + half])
                out[h, t, i] = a * math.cos(angle) - b * math.sin(angle)
                out[h, t, i + half] = a * math.sin(angle) + b * math.cos(angle)
    return out
