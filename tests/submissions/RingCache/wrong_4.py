# Rows come back in slot order, not oldest first, once the ring has wrapped round.
import numpy as np


class RingCache:
    def __init__(self, n_kv_heads, head_dim, window):
        self.window, self.n = window, 0
        self.k = np.zeros((n_kv_heads, window, head_dim))
        self.v = np.zeros((n_kv_heads, window, head_dim))

    def append(self, k_new, v_new):
        n_new = k_new.shape[1]
        before = np.arange(max(0, self.n - self.window + 1), self.n)
        slots = np.sort(before % self.window)
        k = np.concatenate([self.k[:, slots], k_new], axis=1)
        v = np.concatenate([self.v[:, slots], v_new], axis=1)
        positions = np.arange(self.n - len(before), self.n + n_new)
        for t in range(n_new):
            self.k[:, (self.n + t) % self.window] = k_new[:, t]
            self.v[:, (self.n + t) % self.window] = v_new[:, t]
        self.n += n_new
        return k, v, positions

    def __len__(self):
        return self.n
