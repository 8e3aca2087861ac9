"""Overwrites the list of caches it is given: its input is changed."""

import torch


def add_cache(model):
    def cached(ids, caches):
        if caches is None:
            caches = [None] * len(model.layers)
        start = 0 if caches[0] is None else caches[0][0].shape[2]
        x = model.embed_at(ids, start)
        b, n = ids.shape
        for i, layer in enumerate(model.layers):
            a, h = layer.attn, layer.attn_norm(x)
            q = a.wq(h).view(b, n, a.n_heads, a.head_dim).transpose(1, 2)
            k = a.wk(h).view(b, n, a.n_kv_heads, a.head_dim).transpose(1, 2)
            v = a.wv(h).view(b, n, a.n_kv_heads, a.head_dim).transpose(1, 2)
            if caches[i] is not None:
                k, v = torch.cat([caches[i][0], k], 2), torch.cat([caches[i][1], v], 2)
            caches[i] = k, v
            g, t = a.n_heads // a.n_kv_heads, k.shape[2]
            s = q @ k.repeat_interleave(g, 1).transpose(2, 3) / a.head_dim**0.5
            s = s.masked_fill(~torch.ones(n, t, dtype=torch.bool).tril(t - n), float("-inf"))
            o = s.softmax(-1) @ v.repeat_interleave(g, 1)
            x = x + a.wo(o.transpose(1, 2).reshape(b, n, a.n_heads * a.head_dim))
            x = x + layer.mlp(layer.mlp_norm(x))
        return model.head(model.final_norm(x)), caches

    return cached
