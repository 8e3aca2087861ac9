# Codes are read as signed int8: 128 and more become negative (8 bits only).
import numpy as np


def dequantize(codes, scale, zero):
    return codes.astype(np.int8) * scale + zero
