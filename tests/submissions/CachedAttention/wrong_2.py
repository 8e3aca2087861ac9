"""Masks only the first call: a later chunk of several tokens looks ahead within itself."""

import torch
import torch.nn.functional as F
from torch import nn


class CachedAttention(nn.Module):
    def __init__(self, d_model, n_heads, n_kv_heads, head_dim):
        super().__init__()
        self.h, self.kvh, self.d = n_heads, n_kv_heads, head_dim
        self.wq = nn.Linear(d_model, n_heads * head_dim, bias=False)
        self.wk = nn.Linear(d_model, n_kv_heads * head_dim, bias=False)
        self.wv = nn.Linear(d_model, n_kv_heads * head_dim, bias=False)
        self.wo = nn.Linear(n_heads * head_dim, d_model, bias=False)

    def forward(self, x, cache=None):
        q = self.wq(x).unflatten(-1, (self.h, self.d)).transpose(1, 2)
        k = self.wk(x).unflatten(-1, (self.kvh, self.d)).transpose(1, 2)
        v = self.wv(x).unflatten(-1, (self.kvh, self.d)).transpose(1, 2)
        first = cache is None
        if not first:
            k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
        group = self.h // self.kvh
        kk, vv = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        out = F.scaled_dot_product_attention(q, kk, vv, is_causal=first)
        return self.wo(out.transpose(1, 2).flatten(2)), (k, v)
