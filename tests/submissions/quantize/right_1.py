import numpy as np


def quantize(x, n_bits, axis):
    if not 2 <= n_bits <= 8:
        raise ValueError(f"n_bits must be 2 to 8, not {n_bits}")
    zero = np.min(x, axis=axis, keepdims=True)
    scale = (np.max(x, axis=axis, keepdims=True) - zero) / (2**n_bits - 1)
    codes = np.rint((x - zero) / np.where(scale == 0, 1, scale))
    return codes.astype(np.uint8), scale, zero
