"""Causal only without caches: a later chunk of several tokens sees its own future."""

import torch
import torch.nn.functional as F


def add_cache(model):
    def cached(ids, caches):
        start = 0 if caches is None else caches[0][0].shape[2]
        x = model.embed_at(ids, start)
        b, n = ids.shape
        new = []
        for i, layer in enumerate(model.layers):
            a, h = layer.attn, layer.attn_norm(x)
            q = a.wq(h).view(b, n, a.n_heads, a.head_dim).transpose(1, 2)
            k = a.wk(h).view(b, n, a.n_kv_heads, a.head_dim).transpose(1, 2)
            v = a.wv(h).view(b, n, a.n_kv_heads, a.head_dim).transpose(1, 2)
            if caches is not None:
                k, v = torch.cat([caches[i][0], k], 2), torch.cat([caches[i][1], v], 2)
            new.append((k, v))
            g = a.n_heads // a.n_kv_heads
            kk, vv = k.repeat_interleave(g, 1), v.repeat_interleave(g, 1)
            o = F.scaled_dot_product_attention(q, kk, vv, is_causal=caches is None)
            x = x + a.wo(o.transpose(1, 2).reshape(b, n, a.n_heads * a.head_dim))
            x = x + layer.mlp(layer.mlp_norm(x))
        return model.head(model.final_norm(x)), new

    return cached
