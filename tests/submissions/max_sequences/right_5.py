"""Exact fraction, floored; a boolean factor for the lower bound."""

import math
from fractions import Fraction


def max_sequences(memory_bytes, weight_bytes, per_token, seq_len):
    free = Fraction(memory_bytes) - Fraction(weight_bytes)
    return (free > 0) * math.floor(free / (Fraction(per_token) * seq_len))
