"""Exact fractions."""

from fractions import Fraction
from math import prod


def cache_bytes(batch, seq_len, n_layers, n_kv_heads, head_dim, bytes_per_element):
    total = prod([batch, seq_len, n_layers, n_kv_heads, head_dim], start=Fraction(bytes_per_element) * 2)
    return int(total) if total.denominator == 1 else float(total)
