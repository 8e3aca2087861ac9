# When nothing moves (beam_index = 0, 1, 2, ...) the old arrays themselves are returned: a later write reaches the old cache.
import numpy as np


def reorder_cache(cache, beam_index):
    n_beams = cache[0][0].shape[0]
    if np.array_equal(beam_index, np.arange(n_beams)):
        return list(cache)
    return [(k[beam_index], v[beam_index]) for k, v in cache]
