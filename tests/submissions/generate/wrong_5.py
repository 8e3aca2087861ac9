"""Feeds everything so far each time, on top of the caches that hold it already."""

import torch


def generate(model, ids, n_new):
    caches = None
    out = ids
    for _ in range(n_new):
        logits, caches = model(out, caches)
        token = logits[:, -1].argmax(dim=-1, keepdim=True)
        out = torch.cat([out, token], dim=1)
    return out
