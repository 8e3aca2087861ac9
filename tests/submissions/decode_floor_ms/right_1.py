"""Bytes over bandwidth, in milliseconds."""


def decode_floor_ms(weight_bytes, kv_bytes, bandwidth_bytes_per_s):
    return 1000 * (weight_bytes + kv_bytes) / bandwidth_bytes_per_s
