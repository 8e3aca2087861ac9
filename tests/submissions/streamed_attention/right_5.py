"""In-place updates of one array whose last entry is the sum; blocks are taken from the end backwards."""

import numpy as np


def streamed_attention(q, k, v, block):
    n_total, head_dim = k.shape
    state = np.zeros(v.shape[1] + 1, dtype=np.float32)
    m = -np.inf
    for end in range(n_total, 0, -block):
        begin = max(0, end - block)
        rows = np.ones((end - begin, state.size), dtype=np.float32)
        rows[:, :-1] = v[begin:end]
        scores = (k[begin:end].astype(np.float32) * q.astype(np.float32)).sum(axis=1) / np.float32(head_dim) ** 0.5
        if scores.max() > m:
            state *= np.float32(np.exp(m - scores.max()))
            m = scores.max()
        state += np.exp(scores - m).astype(np.float32) @ rows
    return state[:-1] / state[-1]
