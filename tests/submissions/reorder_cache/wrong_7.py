# The new arrays get the old number of beams: wrong (or an error) when n_next differs from n_beams.
import numpy as np


def reorder_cache(cache, beam_index):
    out = []
    for k, v in cache:
        new_k, new_v = np.zeros_like(k), np.zeros_like(v)
        for i, b in enumerate(beam_index):
            new_k[i], new_v[i] = k[b], v[b]
        out.append((new_k, new_v))
    return out
