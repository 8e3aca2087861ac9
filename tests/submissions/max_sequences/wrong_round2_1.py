"""int() truncates a small shortfall to 0, but a large one comes out negative."""


def max_sequences(memory_bytes, weight_bytes, per_token, seq_len):
    return int((memory_bytes - weight_bytes) / (per_token * seq_len))
