"""Does not synchronize before the first reading: work queued by the warm-up lands in the first step."""

from statistics import median


def time_decode(step, n_warmup, n_steps, synchronize, clock):
    for _ in range(n_warmup):
        step()
    seconds = []
    for _ in range(n_steps):
        start = clock()
        step()
        synchronize()
        seconds.append(clock() - start)
    return 1000 * median(seconds)
