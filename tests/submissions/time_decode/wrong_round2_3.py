"""Times the whole run and divides: a mean, not a median."""


def time_decode(step, n_warmup, n_steps, synchronize, clock):
    for _ in range(n_warmup):
        step()
    synchronize()
    start = clock()
    for _ in range(n_steps):
        step()
    synchronize()
    return (clock() - start) * 1e3 / n_steps
