"""Bisection."""


def crossover_tokens(weight_bytes, per_token, batch):
    low, high = 0, 1
    while high * per_token * batch <= weight_bytes:
        low, high = high, 2 * high
    while high - low > 1:
        mid = (low + high) // 2
        if mid * per_token * batch > weight_bytes:
            high = mid
        else:
            low = mid
    return high
