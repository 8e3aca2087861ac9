"""The caches live in the closure: two sequences in turn, or going back to older caches, mix up."""

import torch


def add_cache(model):
    state = {}

    def cached(ids, caches):
        if caches is None:
            state["kv"] = [None] * len(model.layers)
        kv = state["kv"]
        start = 0 if kv[0] is None else kv[0][0].shape[2]
        x = model.embed_at(ids, start)
        b, n = ids.shape
        for i, layer in enumerate(model.layers):
            a, h = layer.attn, layer.attn_norm(x)
            q = a.wq(h).view(b, n, a.n_heads, a.head_dim).transpose(1, 2)
            k = a.wk(h).view(b, n, a.n_kv_heads, a.head_dim).transpose(1, 2)
            v = a.wv(h).view(b, n, a.n_kv_heads, a.head_dim).transpose(1, 2)
            if kv[i] is not None:
                k, v = torch.cat([kv[i][0], k], 2), torch.cat([kv[i][1], v], 2)
            kv[i] = k, v
            g, t = a.n_heads // a.n_kv_heads, k.shape[2]
            s = q @ k.repeat_interleave(g, 1).transpose(2, 3) / a.head_dim**0.5
            s = s.masked_fill(~torch.ones(n, t, dtype=torch.bool).tril(t - n), float("-inf"))
            o = s.softmax(-1) @ v.repeat_interleave(g, 1)
            x = x + a.wo(o.transpose(1, 2).reshape(b, n, a.n_heads * a.head_dim))
            x = x + layer.mlp(layer.mlp_norm(x))
        return model.head(model.final_norm(x)), list(kv)

    return cached
