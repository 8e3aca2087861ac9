"""Two readings a step, statistics.median."""

from statistics import median


def time_decode(step, n_warmup, n_steps, synchronize, clock):
    for _ in range(n_warmup):
        step()
    seconds = []
    for _ in range(n_steps):
        synchronize()
        start = clock()
        step()
        synchronize()
        seconds.append(clock() - start)
    return 1000 * median(seconds)
