# axis is taken for the one that is kept: the scale is shared over all the others.
import numpy as np


def quantize(x, n_bits, axis):
    if not 2 <= n_bits <= 8:
        raise ValueError(n_bits)
    keep = {a % x.ndim for a in ([axis] if np.isscalar(axis) else axis)}
    rest = tuple(a for a in range(x.ndim) if a not in keep)
    zero = x.min(axis=rest, keepdims=True)
    scale = (x.max(axis=rest, keepdims=True) - zero) / (2**n_bits - 1)
    scale = np.where(scale == 0, 1, scale)
    return np.rint((x - zero) / scale).astype(np.uint8), scale, zero
