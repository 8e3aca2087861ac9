"""Adds the two times."""


def decode_floor_ms(weight_bytes, kv_bytes, bandwidth_bytes_per_s):
    return sum(1e3 * part / bandwidth_bytes_per_s for part in (weight_bytes, kv_bytes))
