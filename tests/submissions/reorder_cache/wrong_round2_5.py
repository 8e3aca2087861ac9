# WRONG: when no beam is taken twice the beams are kept by a boolean mask, in their OLD order (beam_index distinct but not ascending, as [1, 0]).
import numpy as np


def reorder_cache(cache, beam_index):
    index = np.asarray(beam_index, dtype=int)
    if cache and len(set(index.tolist())) == len(index):
        index = np.isin(np.arange(len(cache[0][0])), index)
    return [(k[index], v[index]) for k, v in cache]
