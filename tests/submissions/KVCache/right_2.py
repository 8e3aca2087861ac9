"""Unusual: a buffer that doubles; returns writable views of its filled part, and a list for the pair."""

import numpy as np


class KVCache:
    def __init__(self, n_kv_heads, head_dim):
        self.n_kv_heads, self.head_dim = n_kv_heads, head_dim
        self.n = 0
        self.buffers = None

    def append(self, k_new, v_new):
        if self.buffers is None:
            self.buffers = [np.empty((self.n_kv_heads, 1, self.head_dim), dtype=a.dtype) for a in (k_new, v_new)]
        end = self.n + k_new.shape[1]
        capacity = self.buffers[0].shape[1]
        while capacity < end:
            capacity *= 2
        if capacity > self.buffers[0].shape[1]:
            for i, old in enumerate(self.buffers):
                grown = np.empty((self.n_kv_heads, capacity, self.head_dim), dtype=old.dtype)
                grown[:, : self.n] = old[:, : self.n]
                self.buffers[i] = grown
        for buffer, new in zip(self.buffers, (k_new, v_new), strict=True):
            buffer[:, self.n : end] = new
        self.n = end
        return [buffer[:, :end] for buffer in self.buffers]

    def __len__(self):
        return self.n
