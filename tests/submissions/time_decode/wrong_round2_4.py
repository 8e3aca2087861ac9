"""Always warms up at least once, also for n_warmup = 0."""

from statistics import median


def time_decode(step, n_warmup, n_steps, synchronize, clock):
    def now():
        synchronize()
        return clock()

    times = []
    for _i in range(max(1, n_warmup) + n_steps):
        start = now()
        step()
        times.append(now() - start)
    return 1e3 * median(times[-n_steps:])
