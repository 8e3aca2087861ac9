"""The mean, which one slow step pulls up."""


def time_decode(step, n_warmup, n_steps, synchronize, clock):
    for _ in range(n_warmup):
        step()
    total = 0.0
    for _ in range(n_steps):
        synchronize()
        start = clock()
        step()
        synchronize()
        total += clock() - start
    return 1000 * total / n_steps
