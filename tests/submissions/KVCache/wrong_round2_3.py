"""The buffer doubles only once, so one long append that needs more than that raises."""

import numpy as np


class KVCache:
    def __init__(self, n_kv_heads, head_dim):
        self.shape = n_kv_heads, head_dim
        self.k = self.v = None
        self.n = 0

    def append(self, k_new, v_new):
        heads, dim = self.shape
        if self.k is None:
            self.k = np.zeros((heads, max(16, k_new.shape[1]), dim), k_new.dtype)
            self.v = np.zeros((heads, max(16, v_new.shape[1]), dim), v_new.dtype)
        end = self.n + k_new.shape[1]
        if end > self.k.shape[1]:
            self.k = np.concatenate([self.k, np.zeros_like(self.k)], axis=1)
            self.v = np.concatenate([self.v, np.zeros_like(self.v)], axis=1)
        self.k[:, self.n : end] = k_new
        self.v[:, self.n : end] = v_new
        self.n = end
        return self.k[:, :end].copy(), self.v[:, :end].copy()

    def __len__(self):
        return self.n
