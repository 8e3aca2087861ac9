"""Keeps a list of frozen chunks and joins them at every append."""

import numpy as np


class KVCache:
    def __init__(self, n_kv_heads, head_dim):
        self.chunks = []

    def append(self, k_new, v_new):
        kt, vt = (k_new.dtype, v_new.dtype) if not self.chunks else (c.dtype for c in self.chunks[0])
        pair = np.array(k_new, dtype=kt), np.array(v_new, dtype=vt)
        self.chunks.append(pair)
        ks, vs = zip(*self.chunks, strict=False)
        return np.concatenate(ks, axis=1), np.concatenate(vs, axis=1)

    def __len__(self):
        return sum(k.shape[1] for k, _ in self.chunks)
