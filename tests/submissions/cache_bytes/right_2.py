"""Exact fractions, handed back as an int where the number of bytes is whole."""

from fractions import Fraction


def cache_bytes(batch, seq_len, n_layers, n_kv_heads, head_dim, bytes_per_element):
    total = Fraction(bytes_per_element)
    for factor in (2, batch, seq_len, n_layers, n_kv_heads, head_dim):
        total *= factor
    return int(total) if total.denominator == 1 else float(total)
