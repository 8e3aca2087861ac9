"""Wrong: the dtype follows the latest append, a float32 chunk rounds a float64 past."""

import numpy as np


class KVCache:
    def __init__(self, n_kv_heads, head_dim):
        self.k = np.zeros((n_kv_heads, 0, head_dim))
        self.v = np.zeros((n_kv_heads, 0, head_dim))

    def __len__(self):
        return self.k.shape[1]

    def append(self, k_new, v_new):
        self.k = np.concatenate([self.k.astype(k_new.dtype), k_new], axis=1)
        self.v = np.concatenate([self.v.astype(v_new.dtype), v_new], axis=1)
        return self.k, self.v
