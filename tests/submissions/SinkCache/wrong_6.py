# Sinks are picked after the eviction: a first chunk longer than the window gives the wrong ones.
import numpy as np


class SinkCache:
    def __init__(self, n_kv_heads, head_dim, n_sinks, window):
        self.n_sinks, self.window, self.n = n_sinks, window, 0
        self.sink_k = self.sink_v = self.k = self.v = None

    def append(self, k_new, v_new):
        if self.k is None:
            self.k, self.v = k_new[:, :0].copy(), v_new[:, :0].copy()
            self.sink_k, self.sink_v = self.k, self.v
        n_new = k_new.shape[1]
        k = np.concatenate([self.k, k_new], axis=1)
        v = np.concatenate([self.v, v_new], axis=1)
        start = self.n - self.k.shape[1]
        self.n += n_new
        cut = max(0, k.shape[1] - (self.window - 1))
        self.k, self.v = k[:, cut:].copy(), v[:, cut:].copy()
        if self.sink_k.shape[1] < self.n_sinks:
            missing = self.n_sinks - self.sink_k.shape[1]
            new = slice(max(0, self.k.shape[1] - n_new), None)
            self.sink_k = np.concatenate([self.sink_k, self.k[:, new][:, :missing]], axis=1)
            self.sink_v = np.concatenate([self.sink_v, self.v[:, new][:, :missing]], axis=1)
        lost = min(start, self.sink_k.shape[1])
        k = np.concatenate([self.sink_k[:, :lost], k], axis=1)
        v = np.concatenate([self.sink_v[:, :lost], v], axis=1)
        positions = np.concatenate([np.arange(lost), np.arange(start, self.n)])
        return k, v, positions

    def __len__(self):
        return self.n
