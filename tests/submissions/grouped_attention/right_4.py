"""Unusual: online softmax over small blocks of keys, accumulating in float64."""

import numpy as np


def grouped_attention(q, k, v, block=3):
    n_heads, n_new, d = q.shape
    n_kv_heads, n_total, _ = k.shape
    q5 = q.reshape(n_kv_heads, -1 if q.size else n_heads // n_kv_heads, n_new, d) / np.sqrt(d)
    top = np.full((*q5.shape[:3], 1), -np.inf)
    total = np.zeros_like(top)
    acc = np.zeros(q5.shape)
    where = np.arange(n_total - n_new, n_total)[:, None]
    for start in range(0, n_total, block):
        kb, vb = k[:, None, start : start + block], v[:, None, start : start + block]
        s = np.matmul(q5, np.swapaxes(kb, -1, -2))
        s = np.where(np.arange(start, start + kb.shape[2]) <= where, s, -np.inf)
        new_top = np.maximum(top, s.max(axis=-1, keepdims=True))
        shrink, w = np.exp(top - new_top), np.exp(s - new_top)
        total = total * shrink + w.sum(axis=-1, keepdims=True)
        acc = acc * shrink + w @ vb
        top = new_top
    return (acc / total).reshape(n_heads, n_new, d)
