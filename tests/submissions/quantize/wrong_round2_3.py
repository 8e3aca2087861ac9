# WRONG: one constant slice sets the scale of ALL slices to 1 (x with a constant slice beside others).
import numpy as np


def quantize(x, n_bits, axis):
    if not 2 <= n_bits <= 8:
        raise ValueError("n_bits must be 2 to 8")
    x = np.asarray(x)
    zero = x.min(axis=axis, keepdims=True)
    scale = (x.max(axis=axis, keepdims=True) - zero) / (2**n_bits - 1)
    scale = np.ones_like(scale) if (scale == 0).any() else scale
    codes = np.rint((x - zero) / scale).astype(np.uint8)
    return codes, scale, zero
