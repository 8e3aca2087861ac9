"""Returns early where the weights alone do not fit; divmod."""


def max_sequences(memory_bytes, weight_bytes, per_token, seq_len):
    free = memory_bytes - weight_bytes
    if free < 0:
        return 0
    whole, _rest = divmod(free, per_token * seq_len)
    return int(whole)
