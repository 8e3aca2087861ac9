"""Lets a sequence go that would fit exactly."""


def max_sequences(memory_bytes, weight_bytes, per_token, seq_len):
    each = per_token * seq_len
    count = 0
    if memory_bytes > weight_bytes:
        count = (memory_bytes - weight_bytes - 1) // each
    return count
