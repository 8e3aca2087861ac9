"""Allocates the joined tensors in the default dtype, whatever k and v are."""

import torch


def _join(old, new):
    n_old = old.shape[2]
    joined = torch.empty(old.shape[0], old.shape[1], n_old + new.shape[2], old.shape[3])
    joined[:, :, :n_old] = old
    joined[:, :, n_old:] = new
    return joined


def update_cache(past, k, v):
    if past is None:
        return k, v
    return _join(past[0], k), _join(past[1], v)
