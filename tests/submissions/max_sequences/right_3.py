"""Doubling and halving on the definition, no division of bytes."""


def max_sequences(memory_bytes, weight_bytes, per_token, seq_len):
    def fits(sequences):
        return weight_bytes + sequences * seq_len * per_token <= memory_bytes

    if not fits(1):
        return 0
    stride = 1
    while fits(stride * 2):
        stride *= 2
    count = 0
    while stride:
        if fits(count + stride):
            count += stride
        stride //= 2
    return count
