"""The upper of the two middle values for an even count."""


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
    return 1000 * sorted(seconds)[n_steps // 2]
