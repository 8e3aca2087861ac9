import numpy as np


def dequantize(codes, scale, zero):
    out = np.empty(codes.shape, dtype=scale.dtype)
    np.multiply(codes, scale, out=out)
    out += zero
    return out
