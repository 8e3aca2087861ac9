"""x * cos + rotate_half(x) * sin with tables of full width, cast back to the dtype of x."""

import numpy as np


def rotate(x, positions, base=10000.0):
    d = x.shape[-1]
    angle = np.array([[int(p) * base ** (-2.0 * (i % (d // 2)) / d) for i in range(d)] for p in positions])
    angle = angle.reshape(len(positions), d)
    swapped = np.roll(x, d // 2, axis=-1) * np.repeat([-1.0, 1.0], d // 2)
    return (x * np.cos(angle) + swapped * np.sin(angle)).astype(x.dtype)
