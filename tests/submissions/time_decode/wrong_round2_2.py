"""Takes the upper middle for an even count."""


def time_decode(step, n_warmup, n_steps, synchronize, clock):
    for _ in range(n_warmup):
        step()
    times = []
    for _ in range(n_steps):
        synchronize()
        start = clock()
        step()
        synchronize()
        times.append(clock() - start)
    return sorted(times)[n_steps // 2] * 1e3
