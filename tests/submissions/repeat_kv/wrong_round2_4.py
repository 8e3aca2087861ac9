"""Rounds the group size up and cuts, so 5 heads over 2 KV heads do not raise."""

import numpy as np


def repeat_kv(x, n_heads):
    if n_heads < x.shape[0]:
        raise ValueError("n_heads must be a multiple of n_kv_heads")
    group = -(-n_heads // x.shape[0])
    return np.repeat(x, group, axis=0)[:n_heads]
