"""Wrong: the chunk lists belong to the class, so all caches share their tokens."""

import numpy as np


class KVCache:
    k_chunks = []
    v_chunks = []

    def __init__(self, n_kv_heads, head_dim):
        self.n_kv_heads = n_kv_heads
        self.head_dim = head_dim

    def __len__(self):
        return sum(chunk.shape[1] for chunk in self.k_chunks)

    def append(self, k_new, v_new):
        self.k_chunks.append(k_new.copy())
        self.v_chunks.append(v_new.copy())
        return np.concatenate(self.k_chunks, axis=1), np.concatenate(self.v_chunks, axis=1)
