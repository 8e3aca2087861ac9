import numpy as np


def quantize(x, n_bits, axis):
    # float64 throughout, half rounds up, a constant slice gets the scale 1
    if n_bits not in (2, 3, 4, 5, 6, 7, 8):
        raise ValueError("2 to 8 bits")
    wide = np.array(x, dtype=np.float64)
    top = (1 << n_bits) - 1
    low, high = np.amin(wide, axis, keepdims=True), np.amax(wide, axis, keepdims=True)
    scale = (high - low) / top
    scale[scale == 0] = 1.0
    codes = np.clip(np.floor((wide - low) / scale + 0.5), 0, top)
    return codes.astype(np.uint8), scale, low
