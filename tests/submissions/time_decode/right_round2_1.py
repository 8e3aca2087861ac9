"""Reads the clock once at each boundary between steps, always after a synchronization."""

import itertools
import statistics


def time_decode(step, n_warmup, n_steps, synchronize, clock):
    def stamp():
        synchronize()
        return clock()

    for _ in range(n_warmup):
        step()
    marks = [stamp()]
    while len(marks) <= n_steps:
        step()
        marks.append(stamp())
    return 1e3 * statistics.median([b - a for a, b in itertools.pairwise(marks)])
