"""n_steps + 1 readings: the end of one step is the start of the next."""

import numpy as np


def time_decode(step, n_warmup, n_steps, synchronize, clock):
    def now():
        synchronize()
        return clock()

    for _ in range(n_warmup):
        step()
    marks = [now()]
    for _ in range(n_steps):
        step()
        marks.append(now())
    return float(np.median(np.diff(np.array(marks))) * 1e3)
