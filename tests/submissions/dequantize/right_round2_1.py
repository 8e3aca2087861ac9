# a table of the 256 levels of each slice
import numpy as np


def dequantize(codes, scale, zero):
    kind = np.asarray(scale).dtype
    steps = np.arange(256, dtype=kind)
    levels = np.asarray(scale)[..., None] * steps + np.asarray(zero, dtype=kind)[..., None]
    levels = np.broadcast_to(levels, codes.shape + (256,))
    return np.take_along_axis(levels, codes[..., None].astype(np.intp), axis=-1)[..., 0]
