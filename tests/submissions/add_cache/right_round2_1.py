"""The caches are a tuple of pairs; grouped einsum attention."""

import torch


def _attend(attn, h, past):
    b, n, _ = h.shape
    kv, d = attn.n_kv_heads, attn.head_dim
    q = attn.wq(h).reshape(b, n, kv, attn.n_heads // kv, d)
    k = attn.wk(h).reshape(b, n, kv, d).transpose(1, 2)
    v = attn.wv(h).reshape(b, n, kv, d).transpose(1, 2)
    if past is not None:
        k, v = torch.cat((past[0], k), dim=2), torch.cat((past[1], v), dim=2)
    t = k.shape[2]
    hide = torch.ones(n, t, dtype=torch.bool, device=h.device).triu(t - n + 1)
    s = torch.einsum("bnkgd,bktd->bkgnt", q, k) / d**0.5
    p = torch.softmax(s.masked_fill(hide, float("-inf")), dim=-1)
    return attn.wo(torch.einsum("bkgnt,bktd->bnkgd", p, v).reshape(b, n, attn.n_heads * d)), (k, v)


def add_cache(model):
    def cached(ids, caches):
        pasts = caches or (None,) * len(model.layers)
        x = model.embed_at(ids, caches[0][0].shape[2] if caches else 0)
        kept = ()
        for layer, past in zip(model.layers, pasts, strict=False):
            y, pair = _attend(layer.attn, layer.attn_norm(x), past)
            x = x + y
            x = x + layer.mlp(layer.mlp_norm(x))
            kept += (pair,)
        return model.head(model.final_norm(x)), kept

    return cached
