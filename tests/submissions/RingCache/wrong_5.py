# A chunk longer than the window is written from slot 0, not from its own slot: the next append reads rows in the wrong order.
import numpy as np


class RingCache:
    def __init__(self, n_kv_heads, head_dim, window):
        self.window, self.n = window, 0
        self.k = np.zeros((n_kv_heads, window, head_dim))
        self.v = np.zeros((n_kv_heads, window, head_dim))

    def append(self, k_new, v_new):
        n_new, w = k_new.shape[1], self.window
        before = np.arange(max(0, self.n - w + 1), self.n)
        k = np.concatenate([self.k[:, before % w], k_new], axis=1)
        v = np.concatenate([self.v[:, before % w], v_new], axis=1)
        positions = np.arange(self.n - len(before), self.n + n_new)
        if n_new > w:
            self.k[:], self.v[:] = k_new[:, -w:], v_new[:, -w:]
        else:
            slots = np.arange(self.n, self.n + n_new) % w
            self.k[:, slots], self.v[:, slots] = k_new, v_new
        self.n += n_new
        return k, v, positions

    def __len__(self):
        return self.n
