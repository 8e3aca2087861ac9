"""A loop over heads and queries, each query slicing the keys it may see: no mask at all."""

import math

import torch
from torch import nn


class CachedAttention(nn.Module):
    def __init__(self, d_model, n_heads, n_kv_heads, head_dim):
        super().__init__()
        self.sizes = n_heads, n_kv_heads, head_dim
        self.wq = nn.Linear(d_model, n_heads * head_dim, bias=False)
        self.wk = nn.Linear(d_model, n_kv_heads * head_dim, bias=False)
        self.wv = nn.Linear(d_model, n_kv_heads * head_dim, bias=False)
        self.wo = nn.Linear(n_heads * head_dim, d_model, bias=False)

    def forward(self, x, cache=None):
        n_heads, n_kv_heads, head_dim = self.sizes
        batch, n_new, _ = x.shape
        q = self.wq(x)
        k = self.wk(x).reshape(batch, n_new, n_kv_heads, head_dim).permute(0, 2, 1, 3)
        v = self.wv(x).reshape(batch, n_new, n_kv_heads, head_dim).permute(0, 2, 1, 3)
        n_old = 0
        if cache is not None:
            n_old = cache[0].size(2)
            k = torch.cat((cache[0], k), 2)
            v = torch.cat((cache[1], v), 2)
        mixed = torch.zeros_like(q)
        for head in range(n_heads):
            columns = slice(head * head_dim, (head + 1) * head_dim)
            source = head // (n_heads // n_kv_heads)
            for i in range(n_new):
                seen = n_old + i + 1
                scores = k[:, source, :seen] @ q[:, i, columns, None] / math.sqrt(head_dim)
                weights = scores.softmax(dim=1)
                mixed[:, i, columns] = (weights * v[:, source, :seen]).sum(dim=1)
        return self.wo(mixed), (k, v)
