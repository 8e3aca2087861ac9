"""Synchronizes only after steps: with no warm-up the first clock reading is not preceded by one."""

import statistics


def time_decode(step, n_warmup, n_steps, synchronize, clock):
    for _ in range(n_warmup):
        step()
        synchronize()
    times = []
    start = clock()
    for _ in range(n_steps):
        step()
        synchronize()
        end = clock()
        times.append(end - start)
        start = end
    return statistics.median(times) * 1e3
