"""Counts the cache twice, for reading and for writing."""


def decode_floor_ms(weight_bytes, kv_bytes, bandwidth_bytes_per_s):
    return (weight_bytes + 2 * kv_bytes) / bandwidth_bytes_per_s * 1000
