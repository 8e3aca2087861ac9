import numpy as np


def dequantize(codes, scale, zero):
    # a sum over the bits of the codes
    bits = (codes[..., None] >> np.arange(8, dtype=np.uint8)) & 1
    whole = bits @ (2.0 ** np.arange(8))
    return (whole * scale + zero).astype(scale.dtype)
