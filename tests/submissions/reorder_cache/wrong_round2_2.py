# WRONG: one beam becomes many by a strided view: a write to one new beam shows in all of them and in the old cache (old cache with one beam).
import numpy as np


def reorder_cache(cache, beam_index):
    index = np.asarray(beam_index, dtype=int)

    def pick(x):
        if x.shape[0] == 1:
            return np.lib.stride_tricks.as_strided(x, (len(index), *x.shape[1:]), (0, *x.strides[1:]))
        return x[index]

    return [(pick(k), pick(v)) for k, v in cache]
