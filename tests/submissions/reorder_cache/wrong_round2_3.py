# WRONG: neighbouring beams are taken by a slice, which is a view: a write to a new beam reaches the old cache (beam_index consecutive and ascending, as [1] or [1, 2]).
import numpy as np


def reorder_cache(cache, beam_index):
    index = np.asarray(beam_index, dtype=int)
    if len(index) and (np.diff(index) == 1).all():
        index = slice(index[0], index[-1] + 1)
    return [(k[index], v[index]) for k, v in cache]
