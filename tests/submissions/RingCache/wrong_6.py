# While nothing has been evicted it returns views of its buffer: they change when the buffer is shifted by a later append.
import numpy as np


class RingCache:
    def __init__(self, n_kv_heads, head_dim, window):
        self.window, self.n, self.held = window, 0, 0
        self.k = np.zeros((n_kv_heads, window, head_dim))
        self.v = np.zeros((n_kv_heads, window, head_dim))

    def append(self, k_new, v_new):
        n_new, w = k_new.shape[1], self.window
        if self.n + n_new < w:
            self.k[:, self.n : self.n + n_new] = k_new
            self.v[:, self.n : self.n + n_new] = v_new
            self.n += n_new
            self.held = self.n
            return self.k[:, : self.n], self.v[:, : self.n], np.arange(self.n)
        k = np.concatenate([self.k[:, : self.held], k_new], axis=1)
        v = np.concatenate([self.v[:, : self.held], v_new], axis=1)
        self.n += n_new
        keep = min(w - 1, k.shape[1])
        start = k.shape[1] - keep
        self.k[:, :keep], self.v[:, :keep] = k[:, start:], v[:, start:]
        self.held = keep
        return k, v, np.arange(self.n - k.shape[1], self.n)

    def __len__(self):
        return self.n
