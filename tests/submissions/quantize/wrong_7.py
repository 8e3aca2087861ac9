# x is changed: the minimum is subtracted in place.
import numpy as np


def quantize(x, n_bits, axis):
    if not 2 <= n_bits <= 8:
        raise ValueError(n_bits)
    zero = x.min(axis=axis, keepdims=True)
    x -= zero
    scale = x.max(axis=axis, keepdims=True) / (2**n_bits - 1)
    scale[scale == 0] = 1
    return np.rint(x / scale).astype(np.uint8), scale, zero
