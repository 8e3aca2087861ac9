"""Float division: off for very large numbers."""

import math


def crossover_tokens(weight_bytes, per_token, batch):
    return math.floor(weight_bytes / (per_token * batch)) + 1
