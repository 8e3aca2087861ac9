"""Always makes at least one token, for n_new = 0 too."""

import torch


def generate(model, ids, n_new):
    logits, caches = model(ids, None)
    token = logits[:, -1].argmax(dim=-1, keepdim=True)
    out = torch.cat([ids, token], dim=1)
    for _ in range(n_new - 1):
        logits, caches = model(token, caches)
        token = logits[:, -1].argmax(dim=-1, keepdim=True)
        out = torch.cat([out, token], dim=1)
    return out
