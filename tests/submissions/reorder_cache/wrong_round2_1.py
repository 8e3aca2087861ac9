# WRONG: when every beam stays in its place the old arrays themselves are returned in a new list (beam_index = 0, 1, ..., n_beams - 1).
import numpy as np


def reorder_cache(cache, beam_index):
    index = np.asarray(beam_index, dtype=int)
    if cache and np.array_equal(index, np.arange(len(cache[0][0]))):
        return list(cache)
    return [(k[index], v[index]) for k, v in cache]
