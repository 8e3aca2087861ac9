# WRONG: codes are read as signed bytes: those above 127 come out far below zero (8 bits).
import numpy as np


def dequantize(codes, scale, zero):
    signed = np.ascontiguousarray(codes).view(np.int8)
    return signed.astype(scale.dtype) * scale + zero
