"""Milliseconds at each reading, a comprehension over steps, np.percentile as the median."""

import numpy as np


def _lap(step, now):
    start = now()
    step()
    return now() - start


def time_decode(step, n_warmup, n_steps, synchronize, clock):
    def now():
        synchronize()
        return clock() * 1e3

    while n_warmup > 0:
        step()
        n_warmup -= 1
    return np.percentile([_lap(step, now) for _ in range(n_steps)], 50)
