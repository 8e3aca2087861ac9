import numpy as np


def reorder_cache(cache, beam_index):
    index = np.asarray(beam_index, dtype=int)
    return [tuple(np.take(part, index, axis=0) for part in layer) for layer in cache]
