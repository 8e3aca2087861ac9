"""Adds the one before it shares among the batch, and then rounds down."""


def crossover_tokens(weight_bytes, per_token, batch):
    tokens_in_all = weight_bytes // per_token + 1
    return tokens_in_all // batch
