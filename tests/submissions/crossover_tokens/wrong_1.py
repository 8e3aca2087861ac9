"""Rounds up, which is the point of equality where the quotient is whole."""


def crossover_tokens(weight_bytes, per_token, batch):
    return -(-weight_bytes // (per_token * batch))
