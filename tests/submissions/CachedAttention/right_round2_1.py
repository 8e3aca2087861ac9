"""einsum over KV groups, never repeats a head."""

import torch
from torch import nn


class CachedAttention(nn.Module):
    def __init__(self, d_model, n_heads, n_kv_heads, head_dim):
        super().__init__()
        self.split = n_kv_heads, n_heads // n_kv_heads, head_dim
        for name, heads in (("wq", n_heads), ("wk", n_kv_heads), ("wv", n_kv_heads)):
            setattr(self, name, nn.Linear(d_model, heads * head_dim, bias=False))
        self.wo = nn.Linear(n_heads * head_dim, d_model, bias=False)

    def forward(self, x, cache=None):
        kv, group, d = self.split
        b, n = x.shape[:2]
        q = self.wq(x).reshape(b, n, kv, group, d)
        pair = [w(x).reshape(b, n, kv, d).permute(0, 2, 1, 3) for w in (self.wk, self.wv)]
        if cache is not None:
            pair = [torch.cat((old, new), dim=2) for old, new in zip(cache, pair, strict=False)]
        k, v = pair
        s = torch.einsum("bnkgd,bktd->bkgnt", q, k) * d**-0.5
        t = k.shape[2]
        future = torch.arange(t, device=x.device) > torch.arange(t - n, t, device=x.device)[:, None]
        p = s.masked_fill(future, float("-inf")).softmax(-1)
        return self.wo(torch.einsum("bkgnt,bktd->bnkgd", p, v).reshape(b, n, kv * group * d)), (k, v)
