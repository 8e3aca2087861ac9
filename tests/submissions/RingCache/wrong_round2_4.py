# WRONG: a chunk at least as long as the window is kept as a view of the caller's array: if the caller reuses the array, the stored rows change (n_new >= window).
import numpy as np


class RingCache:
    def __init__(self, n_kv_heads, head_dim, window):
        self.n, self.seen = window, 0
        self.k = self.v = np.zeros((n_kv_heads, 0, head_dim), np.float32)

    def append(self, k_new, v_new):
        n_new, n_old = k_new.shape[1], min(self.seen, self.n - 1)
        cut = self.k.shape[1] - n_old
        k = np.concatenate([self.k[:, cut:], k_new], axis=1)
        v = np.concatenate([self.v[:, cut:], v_new], axis=1)
        if n_new >= self.n:
            self.k, self.v = k_new[:, n_new - self.n :], v_new[:, n_new - self.n :]
        else:
            self.k, self.v = k[:, -self.n :].copy(), v[:, -self.n :].copy()
        self.seen += n_new
        return k, v, np.arange(self.seen - k.shape[1], self.seen)

    def __len__(self):
        return self.seen
