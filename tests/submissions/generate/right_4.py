"""A Python generator of tokens, taken n_new times."""

from itertools import islice

import torch


def _tokens(model, ids):
    logits, caches = model(ids, None)
    while True:
        token = torch.argmax(logits[:, -1:], dim=-1)
        yield token
        logits, caches = model(token, caches)


def generate(model, ids, n_new):
    return torch.cat([ids, *islice(_tokens(model, ids), n_new)], dim=1)
