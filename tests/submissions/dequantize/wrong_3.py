# One scale for each row is assumed: scale and zero are laid along axis 0, wrong when the scale is one per column.
import numpy as np


def dequantize(codes, scale, zero):
    if scale.size == 1:
        return codes * scale + zero
    shape = [1] * codes.ndim
    shape[0] = -1
    scale = np.resize(scale, codes.shape[0]).reshape(shape)
    zero = np.resize(zero, codes.shape[0]).reshape(shape)
    return codes * scale + zero
