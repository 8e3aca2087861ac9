"""An nn.Module with buffers, written with index_copy_; the length is kept as a property of free room."""

import torch
from torch import nn


class StaticCache(nn.Module):
    def __init__(self, batch, n_kv_heads, max_len, head_dim):
        super().__init__()
        self.register_buffer("keys", torch.zeros(batch, n_kv_heads, max_len, head_dim, dtype=torch.float32))
        self.register_buffer("values", torch.zeros_like(self.keys))
        self.room = max_len

    def __len__(self):
        return self.keys.shape[2] - self.room

    @torch.no_grad()
    def update(self, k, v):
        count = k.shape[2]
        if count > self.room:
            raise ValueError(f"room for {self.room} more tokens, got {count}")
        places = torch.arange(len(self), len(self) + count)
        self.keys.index_copy_(2, places, k.to(self.keys.dtype))
        self.values.index_copy_(2, places, v.to(self.values.dtype))
        self.room -= count
        return self.keys[..., : len(self), :], self.values[..., : len(self), :]

    def reset(self):
        self.room = self.keys.shape[2]
