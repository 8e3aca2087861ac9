"""Binary search on the definition."""


def crossover_tokens(weight_bytes, per_token, batch):
    def larger(tokens):
        return batch * per_token * tokens > weight_bytes

    high = 1
    while not larger(high):
        high *= 2
    low = 0
    while high - low > 1:
        middle = (low + high) // 2
        if larger(middle):
            high = middle
        else:
            low = middle
    return high
