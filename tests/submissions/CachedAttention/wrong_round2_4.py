"""wo keeps its bias."""

import torch
import torch.nn.functional as F
from torch import cat, nn


class CachedAttention(nn.Module):
    def __init__(self, d_model, n_heads, n_kv_heads, head_dim):
        super().__init__()
        self.n_heads, self.n_kv_heads, self.head_dim = n_heads, n_kv_heads, head_dim
        self.wq = nn.Linear(d_model, n_heads * head_dim, bias=False)
        self.wk = nn.Linear(d_model, n_kv_heads * head_dim, bias=False)
        self.wv = nn.Linear(d_model, n_kv_heads * head_dim, bias=False)
        self.wo = nn.Linear(n_heads * head_dim, d_model)
        nn.init.zeros_(self.wo.bias)

    def forward(self, x, cache=None):
        b, n, _ = x.shape
        q = self.wq(x).view(b, n, self.n_heads, self.head_dim).transpose(1, 2)
        k = self.wk(x).view(b, n, self.n_kv_heads, self.head_dim).transpose(1, 2)
        v = self.wv(x).view(b, n, self.n_kv_heads, self.head_dim).transpose(1, 2)
        if cache is not None:
            k, v = cat([cache[0], k], 2), cat([cache[1], v], 2)
        t, g = k.shape[2], self.n_heads // self.n_kv_heads
        mask = torch.ones(n, t, dtype=torch.bool, device=x.device).tril(t - n)
        kk, vv = k.repeat_interleave(g, 1), v.repeat_interleave(g, 1)
        o = F.scaled_dot_product_attention(q, kk, vv, attn_mask=mask)
        return self.wo(o.transpose(1, 2).reshape(b, n, self.n_heads * self.head_dim)), (k, v)
