# counts pads, shifts one ramp, cuts below 0
import numpy as np


def pad_positions(attention_mask):
    real = np.asarray(attention_mask) != 0
    n = real.shape[1]
    ramp = np.arange(n) - (n - np.count_nonzero(real, axis=1))[:, None]
    return np.maximum(ramp, 0)
