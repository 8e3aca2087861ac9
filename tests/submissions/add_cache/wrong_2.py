"""Caches the ids and runs the whole model over all of them again: the same logits, no work saved."""

import torch


def add_cache(model):
    def cached(ids, caches=None):
        all_ids = ids if caches is None else torch.cat([caches, ids], dim=1)
        logits = model(all_ids)
        return logits[:, all_ids.shape[1] - ids.shape[1] :], all_ids

    return cached
