# WRONG: room is made for at least as many beams as before and never cut: with fewer new beams than old ones, rows of zeros follow.
import numpy as np


def reorder_cache(cache, beam_index):
    result = []
    for layer in cache:
        new = [np.zeros((max(len(x), len(beam_index)), *x.shape[1:]), x.dtype) for x in layer]
        for a, x in zip(new, layer):
            for i, beam in enumerate(beam_index):
                a[i] = x[beam]
        result.append(tuple(new))
    return result
