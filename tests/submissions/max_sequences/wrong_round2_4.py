"""Counts whole tokens as max(1, ...) sequences whenever anything at all is left."""


def max_sequences(memory_bytes, weight_bytes, per_token, seq_len):
    left = memory_bytes - weight_bytes
    if left <= 0:
        return 0
    return max(1, left // (per_token * seq_len))
