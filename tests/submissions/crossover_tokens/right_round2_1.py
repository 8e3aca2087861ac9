"""Nested floors."""


def crossover_tokens(weight_bytes, per_token, batch):
    return int(weight_bytes // per_token // batch) + 1
