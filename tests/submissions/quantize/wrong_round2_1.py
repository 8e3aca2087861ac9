# WRONG: codes are 2**n_bits equal bins (floor), not the nearest level: minimum and maximum are right, numbers between are off by up to a step.
import numpy as np


def quantize(x, n_bits, axis):
    if not 2 <= n_bits <= 8:
        raise ValueError("n_bits must be 2 to 8")
    x = np.asarray(x)
    zero = x.min(axis=axis, keepdims=True)
    scale = (x.max(axis=axis, keepdims=True) - zero) / (2**n_bits - 1)
    scale = np.where(scale == 0, scale.dtype.type(1), scale)
    part = (x - zero) / (scale * (2**n_bits - 1))
    codes = np.minimum(np.floor(part * 2**n_bits), 2**n_bits - 1).astype(np.uint8)
    return codes, scale, zero
