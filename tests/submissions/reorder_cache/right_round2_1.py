# fills empty arrays row by row
import numpy as np


def reorder_cache(cache, beam_index):
    def pick(old):
        new = np.empty((len(beam_index), *old.shape[1:]), dtype=old.dtype)
        for i, beam in enumerate(beam_index):
            new[i] = old[beam]
        return new

    return [(pick(k), pick(v)) for k, v in cache]
