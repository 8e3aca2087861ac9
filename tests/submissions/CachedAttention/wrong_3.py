"""repeat for repeat_interleave: query head 1 reads KV head 1, not 0."""

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
        if cache is not None:
            k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
        n_new, n_total = x.shape[1], k.shape[2]
        mask = torch.ones(n_new, n_total, dtype=torch.bool).tril(n_total - n_new)
        group = self.h // self.kvh
        kk, vv = k.repeat(1, group, 1, 1), v.repeat(1, group, 1, 1)
        out = F.scaled_dot_product_attention(q, kk, vv, attn_mask=mask)
        return self.wo(out.transpose(1, 2).flatten(2)), (k, v)
