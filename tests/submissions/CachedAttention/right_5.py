"""Two softmaxes joined by their sums: over the cache without a mask, over the new tokens with a causal one."""

import torch
from torch import nn


class CachedAttention(nn.Module):
    def __init__(self, d_model, n_heads, n_kv_heads, head_dim):
        super().__init__()
        self.shape_q = (n_heads, head_dim)
        self.shape_kv = (n_kv_heads, head_dim)
        self.wq = nn.Linear(d_model, n_heads * head_dim, bias=False)
        self.wk = nn.Linear(d_model, n_kv_heads * head_dim, bias=False)
        self.wv = nn.Linear(d_model, n_kv_heads * head_dim, bias=False)
        self.wo = nn.Linear(n_heads * head_dim, d_model, bias=False)

    def forward(self, x, cache=None):
        n_new = x.shape[1]
        owner = torch.arange(self.shape_q[0], device=x.device) // (self.shape_q[0] // self.shape_kv[0])
        q = self.wq(x).unflatten(2, self.shape_q).transpose(1, 2)
        new_k = self.wk(x).unflatten(2, self.shape_kv).transpose(1, 2)
        new_v = self.wv(x).unflatten(2, self.shape_kv).transpose(1, 2)
        scale = self.shape_q[1] ** 0.5
        causal = torch.ones(n_new, n_new, dtype=torch.bool, device=x.device).tril()
        parts = [(q @ new_k[:, owner].mT / scale).masked_fill(~causal, float("-inf"))]
        values = [new_v[:, owner]]
        k, v = new_k, new_v
        if cache is not None:
            parts.append(q @ cache[0][:, owner].mT / scale)
            values.append(cache[1][:, owner])
            k, v = torch.cat([cache[0], new_k], 2), torch.cat([cache[1], new_v], 2)
        log_sums = [part.logsumexp(-1, keepdim=True) for part in parts]
        log_total = torch.stack(log_sums).logsumexp(0)
        mixed = sum((part - log_total).exp() @ value for part, value in zip(parts, values, strict=True))
        return self.wo(mixed.transpose(1, 2).flatten(2)), (k, v)
