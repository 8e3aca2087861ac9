# WRONG: the scale is kept above 1e-5: a slice of small numbers (8 bits and a range below 0.0025) uses only the lowest levels, its maximum is not the last.
import numpy as np


def quantize(x, n_bits, axis):
    if not 2 <= n_bits <= 8:
        raise ValueError("n_bits must be 2 to 8")
    x = np.asarray(x)
    zero = x.min(axis=axis, keepdims=True)
    scale = (x.max(axis=axis, keepdims=True) - zero) / (2**n_bits - 1)
    scale = np.maximum(scale, scale.dtype.type(1e-5))
    codes = np.rint((x - zero) / scale).astype(np.uint8)
    return codes, scale, zero
