import numpy as np


class SinkCache:
    # everything needed is picked by position out of old rows + chunk
    def __init__(self, n_kv_heads, head_dim, n_sinks, window):
        self.n_sinks, self.window, self.n = n_sinks, window, 0
        self.k = self.v = None
        self.at = np.zeros(0, dtype=int)

    def append(self, k_new, v_new):
        if self.k is None:
            self.k, self.v = k_new[:, :0].copy(), v_new[:, :0].copy()
        n_new = k_new.shape[1]
        self.n += n_new
        at = np.concatenate([self.at, np.arange(self.n - n_new, self.n)])
        k = np.concatenate([self.k, k_new], axis=1)
        v = np.concatenate([self.v, v_new], axis=1)
        keep = (at < self.n_sinks) | (at > self.n - self.window)
        self.k, self.v, self.at = k[:, keep], v[:, keep], at[keep]
        return k, v, at

    def __len__(self):
        return self.n
