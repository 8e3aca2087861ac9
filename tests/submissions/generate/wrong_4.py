"""Feeds the prompt token by token: n_prompt - 1 calls too many."""

import torch


def generate(model, ids, n_new):
    if n_new == 0:
        return ids
    caches = None
    for i in range(ids.shape[1]):
        logits, caches = model(ids[:, i : i + 1], caches)
    out = ids
    for step in range(n_new):
        token = logits[:, -1].argmax(dim=-1, keepdim=True)
        out = torch.cat([out, token], dim=1)
        if step < n_new - 1:
            logits, caches = model(token, caches)
    return out
