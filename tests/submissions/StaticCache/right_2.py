"""One uninitialized buffer for keys and values, filled through narrow; returns what unbind gives."""

import torch


class StaticCache:
    def __init__(self, batch, n_kv_heads, max_len, head_dim):
        self._store = torch.empty((2, batch, n_kv_heads, max_len, head_dim), dtype=torch.float32)
        self._n = 0

    def __len__(self):
        return self._n

    def reset(self):
        self._n = 0

    def update(self, k, v):
        n_new = k.size(2)
        if n_new > self._store.size(3) - self._n:
            raise ValueError("the cache is full")
        target = self._store.narrow(3, self._n, n_new)
        target[0].copy_(k)
        target[1].copy_(v)
        self._n += n_new
        return self._store.narrow(3, 0, self._n).unbind(0)
