"""Turns the bandwidth into bytes a millisecond first; fsum."""

from math import fsum


def decode_floor_ms(weight_bytes, kv_bytes, bandwidth_bytes_per_s):
    bytes_per_ms = bandwidth_bytes_per_s / 1000.0
    return fsum((weight_bytes, kv_bytes)) / bytes_per_ms
