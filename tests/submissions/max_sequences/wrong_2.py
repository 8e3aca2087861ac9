"""Rounds to the nearest whole sequence."""


def max_sequences(memory_bytes, weight_bytes, per_token, seq_len):
    return max(0, round((memory_bytes - weight_bytes) / (per_token * seq_len)))
