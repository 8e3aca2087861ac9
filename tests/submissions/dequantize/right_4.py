import numpy as np


def dequantize(codes, scale, zero):
    # computed in float64, rounded once at the end
    wide = codes.astype(np.float64) * scale.astype(np.float64) + zero.astype(np.float64)
    return wide.astype(scale.dtype, copy=False)
