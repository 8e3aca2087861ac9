"""Rounds down: the last context at which the cache is still not larger."""


def crossover_tokens(weight_bytes, per_token, batch):
    return weight_bytes // (per_token * batch)
