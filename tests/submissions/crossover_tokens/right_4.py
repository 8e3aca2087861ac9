"""Exact fractions; the smallest int above the quotient."""

import math
from fractions import Fraction


def crossover_tokens(weight_bytes, per_token, batch):
    equal_at = Fraction(weight_bytes) / Fraction(per_token) / batch
    above = math.ceil(equal_at)
    return above + 1 if above == equal_at else above
