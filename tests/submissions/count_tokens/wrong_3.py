"""Wrong: counts the heads too, the rows of all heads together."""


def count_tokens(k):
    return k.reshape(-1, k.shape[-1]).shape[0]
