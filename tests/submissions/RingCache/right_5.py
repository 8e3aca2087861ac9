import numpy as np


class RingCache:
    # a dict from position to row; returns int32 positions
    def __init__(self, n_kv_heads, head_dim, window):
        self.size, self.n = (n_kv_heads, head_dim), 0
        self.window, self.rows = window, {}

    def __len__(self):
        return self.n

    def append(self, k_new, v_new):
        n_new = k_new.shape[1]
        first = max(0, self.n - self.window + 1)
        positions = np.arange(first, self.n + n_new, dtype=np.int32)
        k = np.empty((self.size[0], len(positions), self.size[1]), dtype=k_new.dtype)
        v = np.empty_like(k)
        for i, p in enumerate(positions.tolist()):
            if p < self.n:
                k[:, i], v[:, i] = self.rows[p]
            else:
                k[:, i], v[:, i] = k_new[:, p - self.n], v_new[:, p - self.n]
        for p in range(max(self.n, self.n + n_new - self.window), self.n + n_new):
            self.rows[p] = np.array([k_new[:, p - self.n], v_new[:, p - self.n]])
        self.n += n_new
        for p in [p for p in self.rows if p < self.n - self.window]:
            del self.rows[p]
        return k, v, positions
