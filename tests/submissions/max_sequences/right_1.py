"""Floor division, cut at zero."""


def max_sequences(memory_bytes, weight_bytes, per_token, seq_len):
    return max(0, int((memory_bytes - weight_bytes) // (per_token * seq_len)))
