# WRONG: 0 is always among the levels: zero = min(minimum, 0), wrong for slices in which all numbers are positive.
import numpy as np


def quantize(x, n_bits, axis):
    if not 2 <= n_bits <= 8:
        raise ValueError("n_bits must be 2 to 8")
    x = np.asarray(x)
    zero = x.min(axis=axis, keepdims=True, initial=0)
    scale = (x.max(axis=axis, keepdims=True) - zero) / (2**n_bits - 1)
    scale = np.where(scale == 0, scale.dtype.type(1), scale)
    codes = np.rint((x - zero) / scale).astype(np.uint8)
    return codes, scale, zero
