"""Hands back the past as it is when nothing comes in, which is None at the start."""

import torch


def update_cache(past, k, v):
    if k.shape[2] == 0:
        return past
    if past is None:
        return k, v
    return torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)
