"""float64 throughout: wider than asked."""

import math

import numpy as np


def streamed_attention(q, k, v, block):
    query = np.asarray(q, dtype=np.float64)
    state = (-math.inf, 0.0, np.zeros(v.shape[1]))
    begin = 0
    while begin < len(k):
        end = min(begin + block, len(k))
        scores = np.einsum("d,td->t", query, k[begin:end].astype(np.float64)) / math.sqrt(len(query))
        m_old, s_old, o_old = state
        m = max(m_old, float(scores.max()))
        p = np.exp(scores - m)
        decay = math.exp(m_old - m)
        state = (m, s_old * decay + float(p.sum()), o_old * decay + p @ v[begin:end].astype(np.float64))
        begin = end
    return state[2] / state[1]
