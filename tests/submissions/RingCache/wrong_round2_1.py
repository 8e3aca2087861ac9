# WRONG: a chunk longer than the window: its last rows go to slots counted from the chunk's start, so the NEXT append returns them in a wrong order (n_new > window, n_new % window != 0).
import numpy as np


class RingCache:
    def __init__(self, n_kv_heads, head_dim, window):
        self.shape, self.n, self.seen = (n_kv_heads, window, head_dim), window, 0
        self.k = self.v = None

    def append(self, k_new, v_new):
        if self.k is None:
            self.k, self.v = np.zeros(self.shape, k_new.dtype), np.zeros(self.shape, v_new.dtype)
        n_new = k_new.shape[1]
        end = self.seen + n_new
        first = max(0, self.seen - self.n + 1)
        old = np.arange(first, self.seen) % self.n
        k = np.concatenate([self.k[:, old], k_new], axis=1)
        v = np.concatenate([self.v[:, old], v_new], axis=1)
        stay = min(n_new, self.n)
        slots = np.arange(self.seen, self.seen + stay) % self.n
        self.k[:, slots] = k_new[:, n_new - stay :]
        self.v[:, slots] = v_new[:, n_new - stay :]
        self.seen = end
        return k, v, np.arange(first, end)

    def __len__(self):
        return self.seen
