import numpy as np


def quantize(x, n_bits, axis):
    # every level is written out, and the nearest one wins
    if n_bits > 8 or n_bits < 2:
        raise ValueError("n_bits: 2 to 8")
    zero = x.min(axis=axis, keepdims=True)
    scale = np.ptp(x, axis=axis, keepdims=True) / (2**n_bits - 1)
    distance = np.full(x.shape, np.inf)
    codes = np.zeros(x.shape, dtype=np.uint8)
    for code in range(2**n_bits):
        d = np.abs(x - (code * scale + zero))
        nearer = d < distance
        codes[nearer] = code
        distance = np.where(nearer, d, distance)
    return codes, scale, zero
