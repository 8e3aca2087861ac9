"""Advances the length before it raises: len is wrong after a refused update."""

import torch


class StaticCache:
    def __init__(self, batch, n_kv_heads, max_len, head_dim):
        self.k = torch.zeros(batch, n_kv_heads, max_len, head_dim)
        self.v = torch.zeros(batch, n_kv_heads, max_len, head_dim)
        self.n = 0

    def update(self, k, v):
        start = self.n
        self.n += k.shape[2]
        if self.n > self.k.shape[2]:
            raise ValueError("cache is full")
        self.k[:, :, start : self.n] = k
        self.v[:, :, start : self.n] = v
        return self.k[:, :, : self.n], self.v[:, :, : self.n]

    def reset(self):
        self.n = 0

    def __len__(self):
        return self.n
