"""Gives only the last token's logits, which is all that generation needs."""

import torch
import torch.nn.functional as F


def add_cache(model):
    def cached(ids, caches=None):
        start = 0 if caches is None else caches[0][0].shape[2]
        n_new = ids.shape[1]
        mask = torch.ones(n_new, start + n_new, dtype=torch.bool).tril(start)
        x = model.embed_at(ids, start)
        new_caches = []
        for index, layer in enumerate(model.layers):
            attn = layer.attn
            y = layer.attn_norm(x)
            q = attn.wq(y).unflatten(2, (attn.n_heads, attn.head_dim)).transpose(1, 2)
            k = attn.wk(y).unflatten(2, (attn.n_kv_heads, attn.head_dim)).transpose(1, 2)
            v = attn.wv(y).unflatten(2, (attn.n_kv_heads, attn.head_dim)).transpose(1, 2)
            if caches is not None:
                k = torch.cat([caches[index][0], k], dim=2)
                v = torch.cat([caches[index][1], v], dim=2)
            new_caches.append((k, v))
            group = attn.n_heads // attn.n_kv_heads
            out = F.scaled_dot_product_attention(
                q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1), attn_mask=mask
            )
            x = x + attn.wo(out.transpose(1, 2).flatten(2))
            x = x + layer.mlp(layer.mlp_norm(x))
        return model.head(model.final_norm(x[:, -1:])), new_caches

    return cached
