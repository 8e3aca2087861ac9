"""Computes in float32."""

import numpy as np


def decode_floor_ms(weight_bytes, kv_bytes, bandwidth_bytes_per_s):
    total = np.float32(weight_bytes) + np.float32(kv_bytes)
    return float(total / np.float32(bandwidth_bytes_per_s) * np.float32(1000))
