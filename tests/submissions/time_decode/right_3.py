"""Times the warm-up too and throws it away; the middle by hand."""


def time_decode(step, n_warmup, n_steps, synchronize, clock):
    durations = []
    for _ in range(n_warmup + n_steps):
        synchronize()
        begin = clock()
        step()
        synchronize()
        end = clock()
        durations.append((end - begin) * 1000.0)
    kept = sorted(durations[n_warmup:])
    return (kept[(n_steps - 1) // 2] + kept[n_steps // 2]) / 2
