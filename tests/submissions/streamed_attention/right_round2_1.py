"""Reads the blocks from the back and keeps the sum as an extra last entry of the accumulator."""

import numpy as np


def streamed_attention(q, k, v, block):
    f = np.float32
    state = np.zeros(v.shape[1] + 1, f)
    top = f(-np.inf)
    scaled = (q.astype(np.float64) * q.size**-0.5).astype(f)
    for begin in reversed(range(0, k.shape[0], block)):
        kb, vb = k[begin : begin + block].astype(f), v[begin : begin + block].astype(f)
        s = kb @ scaled
        new = np.maximum(top, s.max())
        w = np.exp(s - new)
        state = state * np.exp(top - new) + np.append(w @ vb, w.sum(dtype=f))
        top = new
    return state[:-1] / state[-1]
