"""Rounds to the nearest number of sequences."""


def max_sequences(memory_bytes, weight_bytes, per_token, seq_len):
    return max(0, round((memory_bytes - weight_bytes) / (per_token * seq_len)))
