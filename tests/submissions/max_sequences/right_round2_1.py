"""Whole tokens first, then whole sequences."""


def max_sequences(memory_bytes, weight_bytes, per_token, seq_len):
    spare = max(memory_bytes, weight_bytes) - weight_bytes
    return int(spare // per_token // seq_len)
