# WRONG: an empty append makes room for one token all the same: the append after it lacks the oldest row (n_new = 0 on a full window, then a token).
import numpy as np


class RingCache:
    def __init__(self, n_kv_heads, head_dim, window):
        self.before, self.seen = window - 1, 0
        self.k = self.v = np.zeros((n_kv_heads, 0, head_dim), np.float32)

    def append(self, k_new, v_new):
        n_new = k_new.shape[1]
        k = np.concatenate([self.k, k_new], axis=1)
        v = np.concatenate([self.v, v_new], axis=1)
        self.seen += n_new
        drop = max(0, self.k.shape[1] + max(1, n_new) - self.before)
        self.k, self.v = k[:, drop:].copy(), v[:, drop:].copy()
        return k, v, np.arange(self.seen - k.shape[1], self.seen)

    def __len__(self):
        return self.seen
