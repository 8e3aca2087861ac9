"""Keeps a normalized answer and its log-sum-exp, merged block by block."""

import numpy as np


def streamed_attention(q, k, v, block):
    scale = np.float32(1 / np.sqrt(len(q)))
    q = q.astype(np.float32)
    answer, lse = np.zeros(v.shape[1], np.float32), np.float32(-np.inf)
    start = 0
    while start < len(k):
        kb = np.asarray(k[start : start + block], np.float32)
        vb = np.asarray(v[start : start + block], np.float32)
        s = (kb * q).sum(axis=1) * scale
        top = s.max()
        w = np.exp(s - top)
        here = w.sum()
        rel = lse - top
        gap = rel - np.log(here)
        share = np.float32(1) / (np.float32(1) + np.exp(gap)) if gap < 80 else np.exp(-gap)
        answer = answer * (1 - share) + (w @ vb / here) * share
        lse = top + np.logaddexp(rel, np.log(here))
        start += block
    return answer
