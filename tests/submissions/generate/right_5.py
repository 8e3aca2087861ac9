"""Recursion: one token, then the rest."""

import torch


def generate(model, ids, n_new):
    def continue_from(feed, caches, left):
        if left == 0:
            return feed[:, :0]
        logits, caches = model(feed, caches)
        token = logits.select(1, logits.shape[1] - 1).argmax(1).unsqueeze(1).to(ids.dtype)
        return torch.hstack((token, continue_from(token, caches, left - 1)))

    return torch.hstack((ids, continue_from(ids, None, n_new)))
