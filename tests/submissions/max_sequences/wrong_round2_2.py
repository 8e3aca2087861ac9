"""An exact fit is counted one too few."""


def max_sequences(memory_bytes, weight_bytes, per_token, seq_len):
    return max(0, (memory_bytes - weight_bytes - 1) // (per_token * seq_len))
