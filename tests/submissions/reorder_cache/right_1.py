import numpy as np


def reorder_cache(cache, beam_index):
    pick = np.array(beam_index, dtype=np.intp)
    return [(k[pick], v[pick]) for k, v in cache]
