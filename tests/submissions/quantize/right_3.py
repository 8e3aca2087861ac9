import numpy as np


def _slice(x, levels):
    lo, hi = x.min(), x.max()
    step = (hi - lo) / (levels - 1)
    if step == 0:
        return np.zeros(x.shape, dtype=np.uint8), step, lo
    return np.round((x - lo) / step).astype(np.uint8), step, lo


def quantize(x, n_bits, axis):
    # slice by slice over the axes that are kept
    if n_bits < 2 or n_bits > 8:
        raise ValueError(n_bits)
    x = np.asarray(x)
    axes = {a % x.ndim for a in ((axis,) if np.isscalar(axis) else axis)}
    small = tuple(1 if a in axes else n for a, n in enumerate(x.shape))
    codes = np.empty(x.shape, dtype=np.uint8)
    scale, zero = np.empty(small, dtype=x.dtype), np.empty(small, dtype=x.dtype)
    for index in np.ndindex(*small):
        where = tuple(slice(None) if a in axes else i for a, i in enumerate(index))
        codes[where], scale[index], zero[index] = _slice(x[where], 2**n_bits)
    return codes, scale, zero
