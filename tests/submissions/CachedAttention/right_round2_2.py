"""Goes one new token at a time through its keys, in a loop."""

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
        b, n, _ = x.shape
        d, g = self.head_dim, self.n_heads // self.n_kv_heads
        q = self.wq(x).unflatten(-1, (self.n_heads, d))
        k = self.wk(x).unflatten(-1, (self.n_kv_heads, d)).transpose(1, 2)
        v = self.wv(x).unflatten(-1, (self.n_kv_heads, d)).transpose(1, 2)
        if cache is not None:
            k, v = torch.cat([cache[0], k], dim=2), torch.cat([cache[1], v], dim=2)
        past = k.shape[2] - n
        out = x.new_zeros(b, 0, self.n_heads * d)
        for i in range(n):
            heads = []
            for h in range(self.n_heads):
                kh, vh = k[:, h // g, : past + i + 1], v[:, h // g, : past + i + 1]
                p = torch.softmax((kh @ q[:, i, h, :, None])[..., 0] / d**0.5, dim=-1)
                heads.append((p[:, None] @ vh)[:, 0])
            out = torch.cat([out, torch.cat(heads, dim=-1)[:, None]], dim=1)
        return self.wo(out), (k, v)
