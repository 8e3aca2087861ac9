"""Grouped einsum, no repeated heads anywhere; mask from positions."""

import torch
from torch import nn


class CachedAttention(nn.Module):
    def __init__(self, d_model, n_heads, n_kv_heads, head_dim):
        super().__init__()
        self.n_heads, self.n_kv_heads, self.head_dim = n_heads, n_kv_heads, head_dim
        self.wq = nn.Linear(d_model, n_heads * head_dim, bias=False)
        self.wk = nn.Linear(d_model, n_kv_heads * head_dim, bias=False)
        self.wv = nn.Linear(d_model, n_kv_heads * head_dim, bias=False)
        self.wo = nn.Linear(n_heads * head_dim, d_model, bias=False)

    def forward(self, x, cache=None):
        batch, n_new, _ = x.shape
        group = self.n_heads // self.n_kv_heads
        q = self.wq(x).view(batch, n_new, self.n_kv_heads, group, self.head_dim)
        k = self.wk(x).view(batch, n_new, self.n_kv_heads, self.head_dim).transpose(1, 2)
        v = self.wv(x).view(batch, n_new, self.n_kv_heads, self.head_dim).transpose(1, 2)
        if cache is not None:
            k, v = torch.cat([cache[0], k], dim=2), torch.cat([cache[1], v], dim=2)
        n_total = k.shape[2]
        scores = torch.einsum("bnkgd,bktd->bkgnt", q, k) / self.head_dim**0.5
        query_at = torch.arange(n_total - n_new, n_total, device=x.device)[:, None]
        scores = scores.masked_fill(torch.arange(n_total, device=x.device) > query_at, float("-inf"))
        mixed = torch.einsum("bkgnt,bktd->bnkgd", scores.softmax(-1), v)
        return self.wo(mixed.reshape(batch, n_new, self.n_heads * self.head_dim)), (k, v)
