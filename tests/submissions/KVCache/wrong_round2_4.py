"""Newest-last ring: returns views of one buffer that is shifted left, so older results change."""

import numpy as np


class KVCache:
    def __init__(self, n_kv_heads, head_dim):
        self.shape, self.n, self.buf = (n_kv_heads, head_dim), 0, None

    def append(self, k_new, v_new):
        heads, dim = self.shape
        n_new = k_new.shape[1]
        if self.buf is None:
            self.buf = np.zeros((2, heads, 64, dim), k_new.dtype)
        while self.n + n_new > self.buf.shape[2]:
            self.buf = np.concatenate([np.zeros_like(self.buf), self.buf], axis=2)
        if n_new:
            self.buf[:, :, :-n_new] = self.buf[:, :, n_new:].copy()
            self.buf[0, :, -n_new:] = k_new
            self.buf[1, :, -n_new:] = v_new
        self.n += n_new
        start = self.buf.shape[2] - self.n
        return self.buf[0, :, start:], self.buf[1, :, start:]

    def __len__(self):
        return self.n
