"""NumPy float64 dot product of bytes and milliseconds a byte."""

import numpy as np


def decode_floor_ms(weight_bytes, kv_bytes, bandwidth_bytes_per_s):
    ms_per_byte = np.divide(1e3, bandwidth_bytes_per_s, dtype=np.float64)
    return np.array([weight_bytes, kv_bytes], dtype=np.float64) @ np.full(2, ms_per_byte)
