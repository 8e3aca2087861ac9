# WRONG: the returned positions are a view of a buffer that the next append overwrites: positions returned earlier change.
import numpy as np


class RingCache:
    def __init__(self, n_kv_heads, head_dim, window):
        self.shape, self.n = (n_kv_heads, window, head_dim), window
        self.k = self.v = None
        self.held = self.seen = 0
        self.pos = np.zeros(window, dtype=int)

    def append(self, k_new, v_new):
        if self.k is None:
            self.k, self.v = np.zeros(self.shape, k_new.dtype), np.zeros(self.shape, v_new.dtype)
        n_new = k_new.shape[1]
        old = slice(max(0, self.held - self.n + 1), self.held)
        first = self.seen - (old.stop - old.start)
        k = np.concatenate([self.k[:, old], k_new], axis=1)
        v = np.concatenate([self.v[:, old], v_new], axis=1)
        self.seen += n_new
        self.held = min(self.n, k.shape[1])
        self.k[:, : self.held] = k[:, k.shape[1] - self.held :]
        self.v[:, : self.held] = v[:, v.shape[1] - self.held :]
        if k.shape[1] > len(self.pos):
            self.pos = np.zeros(k.shape[1], dtype=int)
        positions = self.pos[: k.shape[1]]
        positions[:] = np.arange(first, self.seen)
        return k, v, positions

    def __len__(self):
        return self.seen
