"""Synchronizes after the second reading instead of before it."""

from statistics import median


def time_decode(step, n_warmup, n_steps, synchronize, clock):
    for _ in range(n_warmup):
        step()
    seconds = []
    for _ in range(n_steps):
        synchronize()
        start = clock()
        step()
        stop = clock()
        synchronize()
        seconds.append(stop - start)
    return 1000 * median(seconds)
