"""Exact fractions."""

from fractions import Fraction


def decode_floor_ms(weight_bytes, kv_bytes, bandwidth_bytes_per_s):
    return float(1000 * (Fraction(weight_bytes) + Fraction(kv_bytes)) / Fraction(bandwidth_bytes_per_s))
