"""Stops early when every row has chosen token 0 (taken for an end mark)."""

import torch


def generate(model, ids, n_new):
    feed, caches = ids, None
    for _ in range(n_new):
        logits, caches = model(feed, caches)
        feed = logits[:, -1].argmax(-1, keepdim=True)
        ids = torch.cat([ids, feed], dim=1)
        if not feed.any():
            break
    return ids
