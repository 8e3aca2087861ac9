"""Counts tokens that fit, then whole sequences of them."""


def max_sequences(memory_bytes, weight_bytes, per_token, seq_len):
    free = max(memory_bytes - weight_bytes, 0)
    tokens = int(free // per_token)
    return tokens // seq_len
