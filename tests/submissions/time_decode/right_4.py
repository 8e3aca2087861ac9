"""A context manager as the stopwatch; synchronizes after each warm-up step; keeps the list sorted with bisect."""

from bisect import insort
from contextlib import contextmanager


def time_decode(step, n_warmup, n_steps, synchronize, clock):
    laps = []

    @contextmanager
    def stopwatch():
        synchronize()
        start = clock()
        yield
        synchronize()
        insort(laps, clock() - start)

    for _ in range(n_warmup):
        step()
        synchronize()
    for _ in range(n_steps):
        with stopwatch():
            step()
    half, odd = divmod(len(laps), 2)
    middle = laps[half] if odd else (laps[half - 1] + laps[half]) / 2
    return middle * 1000
