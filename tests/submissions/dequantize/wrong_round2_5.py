# WRONG: stacks the first axis entry by entry and raises for codes without rows (shape[0] = 0).
import numpy as np


def dequantize(codes, scale, zero):
    scales, zeros = np.broadcast_to(scale, codes.shape), np.broadcast_to(zero, codes.shape)
    return np.stack([c.astype(scale.dtype) * s + z for c, s, z in zip(codes, scales, zeros)])
