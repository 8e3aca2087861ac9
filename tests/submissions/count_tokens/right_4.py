"""Unusual: a lambda that takes the length of a transposed view."""

count_tokens = lambda k: len(k.transpose(1, 0, 2))  # noqa: E731
