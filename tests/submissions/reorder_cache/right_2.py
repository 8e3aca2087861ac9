import numpy as np


def _rows(x, beam_index):
    out = np.empty((len(beam_index),) + x.shape[1:], dtype=x.dtype)
    for new, old in enumerate(beam_index):
        out[new] = x[old]
    return out


def reorder_cache(cache, beam_index):
    fresh = []
    for k, v in cache:
        fresh.append((_rows(k, beam_index), _rows(v, beam_index)))
    return fresh
