"""Keeps the token ids as the cache and runs the whole model again: right values, no work saved."""

import torch


def add_cache(model):
    def cached(ids, caches):
        seen = ids if caches is None else torch.cat([caches[0], ids], dim=1)
        logits = model(seen)
        return logits[:, seen.shape[1] - ids.shape[1] :], [seen]

    return cached
