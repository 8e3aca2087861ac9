import numpy as np


def _move(x, beam_index):
    # each beam as one flat row, gathered, and folded back
    rows = x.reshape(len(x), int(np.prod(x.shape[1:])))
    moved = rows[[int(b) for b in beam_index]] if len(beam_index) else rows[:0].copy()
    return moved.reshape(len(beam_index), *x.shape[1:])


def reorder_cache(cache, beam_index):
    return [(_move(k, beam_index), _move(v, beam_index)) for k, v in cache]
