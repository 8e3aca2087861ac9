"""Whole bytes per millisecond by floor division: off when the bandwidth is no multiple of 1,000."""


def decode_floor_ms(weight_bytes, kv_bytes, bandwidth_bytes_per_s):
    return (weight_bytes + kv_bytes) / (bandwidth_bytes_per_s // 1000)
