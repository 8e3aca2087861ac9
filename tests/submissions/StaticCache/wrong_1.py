"""Counts the new tokens before it checks: after the refusal the length is too large."""

import torch


class StaticCache:
    def __init__(self, batch, n_kv_heads, max_len, head_dim):
        self.k = torch.zeros(batch, n_kv_heads, max_len, head_dim)
        self.v = torch.zeros(batch, n_kv_heads, max_len, head_dim)
        self.used = 0

    def __len__(self):
        return self.used

    def update(self, k, v):
        start = self.used
        self.used += k.shape[2]
        if self.used > self.k.shape[2]:
            raise ValueError("the cache is full")
        self.k[:, :, start : self.used] = k
        self.v[:, :, start : self.used] = v
        return self.k[:, :, : self.used], self.v[:, :, : self.used]

    def reset(self):
        self.used = 0
