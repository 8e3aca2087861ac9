"""scaled_dot_product_attention with a boolean mask and repeat_interleave outside the cache; lists for tuples."""

import torch
import torch.nn.functional as F
from torch import nn


class CachedAttention(nn.Module):
    def __init__(self, d_model, n_heads, n_kv_heads, head_dim):
        super().__init__()
        self.h, self.kvh, self.d = n_heads, n_kv_heads, head_dim
        for name, n_in, n_out in (
            ("wq", d_model, n_heads * head_dim),
            ("wk", d_model, n_kv_heads * head_dim),
            ("wv", d_model, n_kv_heads * head_dim),
            ("wo", n_heads * head_dim, d_model),
        ):
            setattr(self, name, nn.Linear(n_in, n_out, bias=False))

    def forward(self, x, cache=None):
        q = self.wq(x).unflatten(-1, (self.h, self.d)).transpose(1, 2)
        pair = [w(x).unflatten(-1, (self.kvh, self.d)).transpose(1, 2) for w in (self.wk, self.wv)]
        if cache is not None:
            pair = [torch.cat(both, dim=2) for both in zip(cache, pair, strict=True)]
        n_new, n_total = x.shape[1], pair[0].shape[2]
        mask = torch.ones(n_new, n_total, dtype=torch.bool, device=x.device).tril(n_total - n_new)
        k, v = (t.repeat_interleave(self.h // self.kvh, dim=1) for t in pair)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return [self.wo(out.transpose(1, 2).flatten(2)), pair]
