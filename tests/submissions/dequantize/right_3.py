import numpy as np


def dequantize(codes, scale, zero):
    # number by number
    s, z = np.broadcast_to(scale, codes.shape), np.broadcast_to(zero, codes.shape)
    out = np.zeros(codes.shape, dtype=scale.dtype)
    for index in np.ndindex(codes.shape):
        out[index] = int(codes[index]) * s[index] + z[index]
    return out
