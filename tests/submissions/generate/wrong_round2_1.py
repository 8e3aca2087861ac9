"""Calls the model for the prompt even when n_new is 0."""

import torch


def generate(model, ids, n_new):
    logits, caches = model(ids, None)
    for i in range(n_new):
        nxt = logits[:, -1].argmax(-1, keepdim=True)
        ids = torch.cat([ids, nxt], dim=1)
        if i + 1 < n_new:
            logits, caches = model(nxt, caches)
    return ids
