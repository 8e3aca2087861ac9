"""torch.cat along the token axis."""

import torch


def update_cache(past, k, v):
    if past is None:
        return k, v
    return torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)
