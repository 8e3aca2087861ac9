"""The first append stores the caller's arrays without copying them."""

import numpy as np


class KVCache:
    def __init__(self, n_kv_heads, head_dim):
        self.k = self.v = None

    def append(self, k_new, v_new):
        if self.k is None:
            self.k, self.v = k_new, v_new
        else:
            self.k = np.concatenate([self.k, k_new.astype(self.k.dtype)], axis=1)
            self.v = np.concatenate([self.v, v_new.astype(self.v.dtype)], axis=1)
        return self.k.copy(), self.v.copy()

    def __len__(self):
        return 0 if self.k is None else self.k.shape[1]
