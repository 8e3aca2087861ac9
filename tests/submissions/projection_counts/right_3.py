"""Unusual: a named tuple in place of a plain one."""

from typing import NamedTuple


class Counts(NamedTuple):
    without_cache: int
    with_cache: int


def projection_counts(n):
    return Counts(sum(range(n + 1)), len(range(n)))
