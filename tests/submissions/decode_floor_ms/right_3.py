"""Exact fractions until the last step."""

from fractions import Fraction


def decode_floor_ms(weight_bytes, kv_bytes, bandwidth_bytes_per_s):
    seconds = (Fraction(weight_bytes) + Fraction(kv_bytes)) / Fraction(bandwidth_bytes_per_s)
    return float(seconds * 1000)
