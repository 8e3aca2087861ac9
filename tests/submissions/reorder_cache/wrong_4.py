# Beams are moved one after another inside one copy: a swap ([1, 0]) reads a row that was overwritten already.
import numpy as np


def reorder_cache(cache, beam_index):
    out = []
    for k, v in cache:
        n_next = len(beam_index)
        room = max(n_next, len(k))
        new_k = np.empty((room,) + k.shape[1:], dtype=k.dtype)
        new_v = np.empty((room,) + v.shape[1:], dtype=v.dtype)
        new_k[: len(k)], new_v[: len(v)] = k, v
        for i, b in enumerate(beam_index):
            new_k[i], new_v[i] = new_k[b], new_v[b]
        out.append((new_k[:n_next], new_v[:n_next]))
    return out
