"""Wrong: takes the longest axis, which is the token axis only once the context has grown."""


def count_tokens(k):
    return max(k.shape)
