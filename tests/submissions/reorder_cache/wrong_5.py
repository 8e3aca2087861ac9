# After the prompt (one old beam) the row is broadcast, not copied: all new beams are one and the same memory.
import numpy as np


def reorder_cache(cache, beam_index):
    n_next = len(beam_index)
    if cache[0][0].shape[0] == 1:
        return [
            tuple(np.lib.stride_tricks.as_strided(x, (n_next,) + x.shape[1:], (0,) + x.strides[1:]) for x in kv)
            for kv in cache
        ]
    return [(k[beam_index], v[beam_index]) for k, v in cache]
