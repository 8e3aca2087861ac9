"""Rounds to microseconds."""


def decode_floor_ms(weight_bytes, kv_bytes, bandwidth_bytes_per_s):
    return round((weight_bytes + kv_bytes) / bandwidth_bytes_per_s * 1e3, 3)
