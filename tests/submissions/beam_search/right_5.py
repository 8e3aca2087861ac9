import heapq

import numpy as np


class _Beam:
    def __init__(self, score, parent, row, token):
        self.score, self.parent, self.row, self.token = score, parent, row, token

    def words(self):
        return [] if self.parent is None else self.parent.words() + [self.token]


def beam_search(step, prompt, n_beams, n_new):
    if n_new == 0:
        return np.zeros((n_beams, 0), dtype=np.int64), np.zeros(n_beams, dtype=np.float64)
    beams, cache = [_Beam(0.0, None, 0, None)], None
    for i in range(n_new):
        if i == 0:
            lp, cache = step(np.array([prompt], dtype=np.int64), None)
        else:
            rows = np.array([b.row for b in beams])
            cache = [tuple(x[rows] for x in kv) for kv in cache]
            lp, cache = step(np.array([[b.token] for b in beams]), cache)
        every = (_Beam(b.score + lp[r, t], b, r, t) for r, b in enumerate(beams) for t in range(lp.shape[1]))
        beams = heapq.nsmallest(n_beams, every, key=lambda b: (-b.score, b.row, b.token))
    return np.array([b.words() for b in beams]), np.array([b.score for b in beams])
