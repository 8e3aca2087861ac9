"""Subtracts two rounded numbers: sequences in the memory minus sequences in the weights."""


def max_sequences(memory_bytes, weight_bytes, per_token, seq_len):
    each = per_token * seq_len
    return max(0, memory_bytes // each - weight_bytes // each)
