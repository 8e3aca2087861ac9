# one array of rows with their positions; two conditions
import numpy as np


class SinkCache:
    def __init__(self, n_kv_heads, head_dim, n_sinks, window):
        self.n_sinks, self.n, self.seen = n_sinks, window, 0
        self.k = self.v = np.zeros((n_kv_heads, 0, head_dim), np.float32)
        self.pos = np.arange(0)

    def append(self, k_new, v_new):
        end = self.seen + k_new.shape[1]
        k = np.concatenate([self.k, k_new], axis=1)
        v = np.concatenate([self.v, v_new], axis=1)
        pos = np.concatenate([self.pos, np.arange(self.seen, end)])
        need = (pos < self.n_sinks) | (pos > self.seen - self.n)
        hold = (pos < self.n_sinks) | (pos >= end - self.n)
        self.k, self.v, self.pos, self.seen = k[:, hold], v[:, hold], pos[hold], end
        return k[:, need], v[:, need], pos[need]

    def __len__(self):
        return self.seen
