"""Rounds to nearest before adding one."""


def crossover_tokens(weight_bytes, per_token, batch):
    return round(weight_bytes / (per_token * batch)) + 1
