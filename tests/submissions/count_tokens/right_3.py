"""Unusual: walks the rows of the first head and counts them in a loop."""


def count_tokens(k):
    n = 0
    for _row in k[0]:
        n += 1
    return n
