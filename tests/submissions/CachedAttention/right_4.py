"""Starts from an empty cache; folds the group into the token axis so that one matmul serves a KV head."""

import torch
from torch import nn


class CachedAttention(nn.Module):
    def __init__(self, d_model, n_heads, n_kv_heads, head_dim):
        super().__init__()
        self.group = n_heads // n_kv_heads
        self.n_kv_heads = n_kv_heads
        self.head_dim = head_dim
        self.wq = nn.Linear(d_model, n_heads * head_dim, bias=False)
        self.wk = nn.Linear(d_model, n_kv_heads * head_dim, bias=False)
        self.wv = nn.Linear(d_model, n_kv_heads * head_dim, bias=False)
        self.wo = nn.Linear(n_heads * head_dim, d_model, bias=False)

    def _heads(self, y):
        return y.view(y.shape[0], y.shape[1], self.n_kv_heads, self.head_dim).transpose(1, 2)

    def forward(self, x, cache=None):
        b, n, _ = x.shape
        kv, d, g = self.n_kv_heads, self.head_dim, self.group
        if cache is None:
            cache = (x.new_zeros(b, kv, 0, d), x.new_zeros(b, kv, 0, d))
        k = torch.cat([cache[0], self._heads(self.wk(x))], dim=2)
        v = torch.cat([cache[1], self._heads(self.wv(x))], dim=2)
        total = k.shape[2]
        q = self.wq(x).view(b, n, kv, g, d).permute(0, 2, 3, 1, 4).reshape(b, kv, g * n, d)
        scores = (q * d**-0.5) @ k.transpose(-1, -2)
        hidden = torch.ones(n, total, dtype=torch.bool, device=x.device).triu(total - n + 1)
        scores = scores.view(b, kv, g, n, total).masked_fill(hidden, -torch.inf)
        weights = torch.exp(scores - torch.logsumexp(scores, dim=-1, keepdim=True)).view(b, kv, g * n, total)
        mixed = (weights @ v).view(b, kv, g, n, d).permute(0, 3, 1, 2, 4).reshape(b, n, kv * g * d)
        return self.wo(mixed), (k, v)
