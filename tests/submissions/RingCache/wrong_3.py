# len is the number of rows held: it stops growing at window (more than window tokens seen).
import numpy as np


class RingCache:
    def __init__(self, n_kv_heads, head_dim, window):
        self.window, self.dropped = window, 0
        self.k = self.v = np.zeros((n_kv_heads, 0, head_dim))

    def append(self, k_new, v_new):
        old = max(0, self.k.shape[1] - self.window + 1)
        k = np.concatenate([self.k.astype(k_new.dtype), k_new], axis=1)
        v = np.concatenate([self.v.astype(v_new.dtype), v_new], axis=1)
        positions = np.arange(self.dropped, self.dropped + k.shape[1])
        cut = max(0, k.shape[1] - self.window)
        self.k, self.v = k[:, cut:].copy(), v[:, cut:].copy()
        self.dropped += cut
        return k[:, old:], v[:, old:], positions[old:]

    def __len__(self):
        return self.k.shape[1]
