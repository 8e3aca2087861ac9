"""Unusual: token-major storage, one row per token in a dict; the result is a transposed, read-only view."""

import numpy as np


class KVCache:
    def __init__(self, n_kv_heads, head_dim):
        self._heads, self._dim = n_kv_heads, head_dim
        self._rows = {}
        self._dtype = None

    def __len__(self):
        return len(self._rows)

    def _join(self, which):
        out = np.zeros((len(self._rows), self._heads, self._dim), dtype=self._dtype)
        for position, pair in self._rows.items():
            out[position] = pair[which]
        out.setflags(write=False)
        return out.transpose(1, 0, 2)

    def append(self, k_new, v_new):
        if self._dtype is None:
            self._dtype = np.result_type(k_new, v_new)
        for t in range(k_new.shape[1]):
            self._rows[len(self._rows)] = (k_new[:, t].copy(), v_new[:, t].copy())
        return self._join(0), self._join(1)
