import numpy as np


class RingCache:
    # a ring in place: the token at position p lies in slot p % window
    def __init__(self, n_kv_heads, head_dim, window):
        self._shape = (n_kv_heads, window, head_dim)
        self._window, self._next, self._kv = window, 0, None

    def append(self, k_new, v_new):
        if self._kv is None:
            self._kv = [np.zeros(self._shape, x.dtype) for x in (k_new, v_new)]
        n, at, w = k_new.shape[1], self._next, self._window
        before = np.arange(max(0, at - w + 1), at)
        rows = []
        for ring, new in zip(self._kv, (k_new, v_new)):
            rows.append(np.concatenate([ring[:, before % w], new], axis=1))
            for t in range(max(0, n - w), n):
                ring[:, (at + t) % w] = new[:, t]
        self._next += n
        return rows[0], rows[1], np.concatenate([before, np.arange(at, at + n)])

    def __len__(self):
        return self._next
