# WRONG: the minimum is subtracted in place: x changes if it is float64 already.
import numpy as np


def quantize(x, n_bits, axis):
    if not 2 <= n_bits <= 8:
        raise ValueError("n_bits must be 2 to 8")
    dtype = np.asarray(x).dtype
    x = np.asarray(x, dtype=np.float64)
    zero = x.min(axis=axis, keepdims=True)
    scale = (x.max(axis=axis, keepdims=True) - zero) / (2**n_bits - 1)
    scale = np.where(scale == 0, scale.dtype.type(1), scale)
    x -= zero
    codes = np.rint(x / scale).astype(np.uint8)
    return codes, scale.astype(dtype), zero.astype(dtype)
