"""Always copies, and returns a list."""

import torch


def update_cache(past, k, v):
    if past is None:
        past = (k[:, :, :0], v[:, :, :0])
    return [torch.cat(pair, dim=-2) for pair in zip(past, (k, v), strict=True)]
