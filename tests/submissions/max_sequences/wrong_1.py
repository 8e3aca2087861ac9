"""Goes below zero when the weights do not fit."""


def max_sequences(memory_bytes, weight_bytes, per_token, seq_len):
    return (memory_bytes - weight_bytes) // (per_token * seq_len)
