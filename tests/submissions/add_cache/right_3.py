"""Every token goes through the layers on its own; a dict holds the length and the pairs."""

import torch


def _one_token(model, ids, start, pairs):
    x = model.embed_at(ids, start)
    grown = []
    for index, layer in enumerate(model.layers):
        attn = layer.attn
        batch = x.shape[0]
        y = layer.attn_norm(x)
        k = attn.wk(y).view(batch, attn.n_kv_heads, 1, attn.head_dim)
        v = attn.wv(y).view(batch, attn.n_kv_heads, 1, attn.head_dim)
        if pairs:
            k = torch.cat([pairs[index][0], k], dim=2)
            v = torch.cat([pairs[index][1], v], dim=2)
        grown.append((k, v))
        q = attn.wq(y).view(batch, attn.n_kv_heads, -1, attn.head_dim)
        weights = torch.softmax(torch.einsum("bkgd,bktd->bkgt", q, k) * attn.head_dim**-0.5, dim=-1)
        x = x + attn.wo(torch.einsum("bkgt,bktd->bkgd", weights, v).reshape(batch, 1, -1))
        x = x + layer.mlp(layer.mlp_norm(x))
    return model.head(model.final_norm(x)), grown


def add_cache(model):
    def cached(ids, caches):
        state = {"length": 0, "pairs": []} if caches is None else dict(caches)
        logits = [model.head(model.final_norm(model.embed_at(ids[:, :0], state["length"])))]
        for i in range(ids.shape[1]):
            row, pairs = _one_token(model, ids[:, i : i + 1], state["length"], state["pairs"])
            logits.append(row)
            state = {"length": state["length"] + 1, "pairs": pairs}
        return torch.cat(logits, dim=1), state

    return cached
