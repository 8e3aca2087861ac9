"""Builds the answer bit by bit from the top: the largest count that is not above the weights, plus one."""


def crossover_tokens(weight_bytes, per_token, batch):
    step = batch * per_token
    fits = 0
    for bit in reversed(range(max(1, int(weight_bytes).bit_length()))):
        candidate = fits | (1 << bit)
        if candidate * step <= weight_bytes:
            fits = candidate
    return fits + 1
