"""divmod and a conditional."""


def max_sequences(memory_bytes, weight_bytes, per_token, seq_len):
    whole, _ = divmod(memory_bytes - weight_bytes, per_token * seq_len)
    return int(whole) if whole > 0 else 0
