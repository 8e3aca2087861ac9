"""Unusual: the queries of a group are stacked as rows of one matrix for each KV head."""

import numpy as np


def grouped_attention(q, k, v):
    n_heads, n_new, d = q.shape
    n_kv_heads, n_total, _ = k.shape
    group = n_heads // n_kv_heads
    rows = q.reshape(n_kv_heads, group * n_new, d)
    s = rows @ k.transpose(0, 2, 1) / np.sqrt(d)
    mask = np.tile(np.tri(n_new, n_total, n_total - n_new, dtype=bool), (group, 1))
    s = np.where(mask, s, -np.inf)
    w = np.exp(s - s.max(axis=-1, keepdims=True, initial=-np.inf))
    return (w / w.sum(axis=-1, keepdims=True) @ v).reshape(n_heads, n_new, d)
