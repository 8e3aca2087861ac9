"""An nn.Module around the model; all layers' caches in one tensor (layers, 2, batch, heads, tokens, head_dim)."""

import torch
import torch.nn.functional as F
from torch import nn


class Cached(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids, caches=None):
        model = self.model
        start = 0 if caches is None else caches.shape[4]
        n_new = ids.shape[1]
        mask = torch.ones(n_new, start + n_new, dtype=torch.bool, device=ids.device).tril(start)
        x = model.embed_at(ids, start)
        stored = []
        for index, layer in enumerate(model.layers):
            attn = layer.attn
            y = layer.attn_norm(x)
            q = attn.wq(y).unflatten(2, (attn.n_heads, attn.head_dim)).transpose(1, 2)
            pair = torch.stack([w(y).unflatten(2, (attn.n_kv_heads, attn.head_dim)) for w in (attn.wk, attn.wv)])
            pair = pair.transpose(2, 3)
            if caches is not None:
                pair = torch.cat([caches[index], pair], dim=3)
            stored.append(pair)
            k, v = pair.repeat_interleave(attn.n_heads // attn.n_kv_heads, dim=2)
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            x = x + attn.wo(out.transpose(1, 2).flatten(2))
            x = x + layer.mlp(layer.mlp_norm(x))
        return model.head(model.final_norm(x)), torch.stack(stored)


def add_cache(model):
    return Cached(model)
