"""Writes only the last of the new tokens, as if there were always one."""

import torch


def update_cache(past, k, v):
    if past is None:
        return k, v
    return torch.cat([past[0], k[:, :, -1:]], dim=2), torch.cat([past[1], v[:, :, -1:]], dim=2)
