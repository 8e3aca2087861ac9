"""Wrong: len() of the array, which is the number of heads."""


def count_tokens(k):
    return len(k)
