"""Ceiling: equal, not larger, when the division is exact."""


def crossover_tokens(weight_bytes, per_token, batch):
    return -(-weight_bytes // (per_token * batch))
