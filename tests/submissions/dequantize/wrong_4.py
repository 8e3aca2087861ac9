# The result is always float32: float64 scales lose half their digits.
import numpy as np


def dequantize(codes, scale, zero):
    return (codes * scale + zero).astype(np.float32)
