"""dtype follows the last append, so a later float32 append narrows a float64 cache."""

import numpy as np


class KVCache:
    def __init__(self, n_kv_heads, head_dim):
        self.k = np.zeros((n_kv_heads, 0, head_dim))
        self.v = np.zeros((n_kv_heads, 0, head_dim))

    def append(self, k_new, v_new):
        self.k = np.concatenate([self.k, k_new], axis=1).astype(k_new.dtype)
        self.v = np.concatenate([self.v, v_new], axis=1).astype(v_new.dtype)
        return self.k.copy(), self.v.copy()

    def __len__(self):
        return self.k.shape[1]
