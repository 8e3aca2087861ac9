"""Writes into one tensor allocated for the whole answer; feeds slices of it."""

import torch


def generate(model, ids, n_new):
    batch, n_prompt = ids.shape
    out = torch.empty((batch, n_prompt + n_new), dtype=ids.dtype, device=ids.device)
    out[:, :n_prompt] = ids
    caches, begin = None, 0
    with torch.no_grad():
        for end in range(n_prompt, n_prompt + n_new):
            logits, caches = model(out[:, begin:end], caches)
            out[:, end] = logits[:, -1, :].max(dim=-1).indices
            begin = end
    return out
