"""Tokens in all first, then shared among the sequences, rounded up."""


def crossover_tokens(weight_bytes, per_token, batch):
    tokens_in_all = int(weight_bytes // per_token) + 1
    return -(-tokens_in_all // batch)
