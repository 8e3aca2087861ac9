# A first chunk is stored as a view of the caller's array: a later write to that array changes the cache.
import numpy as np


class RingCache:
    def __init__(self, n_kv_heads, head_dim, window):
        self.window, self.n = window, 0
        self.k = self.v = None

    def append(self, k_new, v_new):
        if self.n == 0:
            k, v = k_new, v_new
        else:
            k = np.concatenate([self.k, k_new], axis=1)
            v = np.concatenate([self.v, v_new], axis=1)
        self.n += k_new.shape[1]
        cut = max(0, k.shape[1] - self.window + 1)
        self.k, self.v = k[:, cut:], v[:, cut:]
        return k.copy(), v.copy(), np.arange(self.n - k.shape[1], self.n)

    def __len__(self):
        return self.n
