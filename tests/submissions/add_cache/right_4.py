"""Keeps each layer's chunks unjoined in a tuple, and joins the scores instead of the keys."""

from functools import partial

import torch


def _attend(attn, y, chunks):
    batch, n_new, _ = y.shape
    group = attn.n_heads // attn.n_kv_heads
    q = attn.wq(y).view(batch, n_new, attn.n_kv_heads, group, attn.head_dim)
    k = attn.wk(y).view(batch, n_new, attn.n_kv_heads, attn.head_dim)
    v = attn.wv(y).view(batch, n_new, attn.n_kv_heads, attn.head_dim)
    scores = [torch.einsum("bnkgd,btkd->bkgnt", q, old_k) for old_k, _ in chunks]
    own = torch.einsum("bnkgd,btkd->bkgnt", q, k)
    later = torch.ones(n_new, n_new, dtype=torch.bool).triu(1)
    scores.append(own.masked_fill(later, float("-inf")))
    chunks = (*chunks, (k, v))
    weights = torch.softmax(torch.cat(scores, dim=-1) / attn.head_dim**0.5, dim=-1)
    mixed = torch.zeros_like(q)
    begin = 0
    for _, chunk_v in chunks:
        end = begin + chunk_v.shape[1]
        mixed = mixed + torch.einsum("bkgnt,btkd->bnkgd", weights[..., begin:end], chunk_v)
        begin = end
    return attn.wo(mixed.reshape(batch, n_new, attn.n_heads * attn.head_dim)), chunks


def _run(model, ids, caches=None):
    start, per_layer = (0, ((),) * len(model.layers)) if caches is None else caches
    x = model.embed_at(ids, start)
    after = []
    for layer, chunks in zip(model.layers, per_layer, strict=True):
        mixed, chunks = _attend(layer.attn, layer.attn_norm(x), chunks)
        x = x + mixed
        x = x + layer.mlp(layer.mlp_norm(x))
        after.append(chunks)
    return model.head(model.final_norm(x)), (start + ids.shape[1], tuple(after))


def add_cache(model):
    return partial(_run, model)
