"""Allocates with new_empty and writes both parts by slice."""


def _join(old, new):
    batch, heads, n_old, dim = old.shape
    joined = new.new_empty(batch, heads, n_old + new.shape[2], dim)
    joined[:, :, :n_old] = old
    joined[:, :, n_old:] = new
    return joined


def update_cache(past, k, v):
    if past is None:
        return k.clone(), v.clone()
    return _join(past[0], k), _join(past[1], v)
