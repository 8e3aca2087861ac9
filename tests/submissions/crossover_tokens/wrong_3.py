"""The tokens of the whole batch, not of a sequence."""


def crossover_tokens(weight_bytes, per_token, batch):
    return batch * (weight_bytes // (per_token * batch) + 1)
