"""Joins along a negative axis, both at once when there is a past."""

import torch


def update_cache(past, k, v):
    pairs = [(k, v)] if past is None else [tuple(past), (k, v)]
    return tuple(torch.cat(parts, dim=-2) for parts in zip(*pairs, strict=False))
