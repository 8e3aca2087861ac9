"""A generator of durations kept sorted by insertion, warm-up synchronized after every step."""

from bisect import insort


def time_decode(step, n_warmup, n_steps, synchronize, clock):
    for _ in range(n_warmup):
        step()
        synchronize()

    def durations():
        for _ in range(n_steps):
            synchronize()
            begin = clock()
            step()
            synchronize()
            yield 1000.0 * (clock() - begin)

    ordered = []
    for ms in durations():
        insort(ordered, ms)
    half = len(ordered) // 2
    return (ordered[half] + ordered[~half]) / 2
