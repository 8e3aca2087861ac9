"""A callable object; keys and values of a layer share one tensor's last axis, loops over query heads."""

from typing import NamedTuple

import torch


class Past(NamedTuple):
    length: int
    rows: tuple


class CachedModel:
    def __init__(self, model):
        self.model = model

    def __call__(self, ids, caches=None):
        length, rows = caches if caches is not None else Past(0, (None,) * len(self.model.layers))
        x = self.model.embed_at(ids, length)
        new_rows = []
        for layer, old in zip(self.model.layers, rows, strict=True):
            x, kept = self.block(layer, x, old, length)
            new_rows.append(kept)
        return self.model.head(self.model.final_norm(x)), Past(length + ids.shape[1], tuple(new_rows))

    @staticmethod
    def block(layer, x, old, length):
        attn, y = layer.attn, layer.attn_norm(x)
        kept = torch.cat([attn.wk(y), attn.wv(y)], dim=-1)
        if old is not None:
            kept = torch.cat([old, kept], dim=1)
        keys, values = kept.chunk(2, dim=-1)
        bias = torch.full((y.shape[1], kept.shape[1]), float("-inf"), dtype=y.dtype).triu(length + 1)
        outputs = []
        for head, q in enumerate(attn.wq(y).split(attn.head_dim, dim=-1)):
            begin = head * attn.n_kv_heads // attn.n_heads * attn.head_dim
            k = keys[..., begin : begin + attn.head_dim]
            v = values[..., begin : begin + attn.head_dim]
            weights = torch.baddbmm(bias.expand(len(q), -1, -1), q, k.mT, alpha=attn.head_dim**-0.5).softmax(-1)
            outputs.append(weights.bmm(v))
        x = x + attn.wo(torch.cat(outputs, dim=-1))
        return x + layer.mlp(layer.mlp_norm(x)), kept


def add_cache(model):
    return CachedModel(model)
