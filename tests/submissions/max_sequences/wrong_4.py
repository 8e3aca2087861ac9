"""Says 1 where not even one sequence fits."""


def max_sequences(memory_bytes, weight_bytes, per_token, seq_len):
    return max(1, (memory_bytes - weight_bytes) // (per_token * seq_len))
