"""Writes the grown pairs into the list that the caller handed in."""

import torch


def add_cache(model):
    def attend(attn, x, past):
        batch, n_new, _ = x.shape
        q = attn.wq(x).view(batch, n_new, attn.n_heads, attn.head_dim).transpose(1, 2)
        k = attn.wk(x).view(batch, n_new, attn.n_kv_heads, attn.head_dim).transpose(1, 2)
        v = attn.wv(x).view(batch, n_new, attn.n_kv_heads, attn.head_dim).transpose(1, 2)
        if past is not None:
            k, v = torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)
        n_total = k.shape[2]
        group = attn.n_heads // attn.n_kv_heads
        scores = q @ k.repeat_interleave(group, dim=1).transpose(2, 3) / attn.head_dim**0.5
        mask = torch.ones(n_new, n_total, dtype=torch.bool).tril(n_total - n_new)
        weights = scores.masked_fill(~mask, float("-inf")).softmax(dim=-1)
        out = (weights @ v.repeat_interleave(group, dim=1)).transpose(1, 2).flatten(2)
        return attn.wo(out), (k, v)

    def cached(ids, caches=None):
        if caches is None:
            caches = [None] * len(model.layers)
        start = 0 if caches[0] is None else caches[0][0].shape[2]
        x = model.embed_at(ids, start)
        for i, layer in enumerate(model.layers):
            mixed, caches[i] = attend(layer.attn, layer.attn_norm(x), caches[i])
            x = x + mixed
            x = x + layer.mlp(layer.mlp_norm(x))
        return model.head(model.final_norm(x)), caches

    return cached
