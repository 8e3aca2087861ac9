import numpy as np


class SinkCache:
    # sinks in an array of their own, filled as they arrive, beside a ring by position % window
    def __init__(self, n_kv_heads, head_dim, n_sinks, window):
        self.h, self.d, self.s, self.w, self.seen = n_kv_heads, head_dim, n_sinks, window, 0
        self.sink = np.zeros((2, n_kv_heads, n_sinks, head_dim))
        self.ring = np.zeros((2, n_kv_heads, window, head_dim))

    def append(self, k_new, v_new):
        n = k_new.shape[1]
        lo = max(0, self.seen - self.w + 1)
        sinks = min(lo, self.s)  # those that are out of the window
        out = np.empty((2, self.h, sinks + self.seen - lo + n, self.d))
        out[:, :, :sinks] = self.sink[:, :, :sinks]
        for i, p in enumerate(range(lo, self.seen)):
            out[:, :, sinks + i] = self.ring[:, :, p % self.w]
        for j, new in enumerate((k_new, v_new)):
            out[j, :, sinks + self.seen - lo :] = new
            for t in range(n):
                p = self.seen + t
                self.ring[j, :, p % self.w] = new[:, t]
                if p < self.s:
                    self.sink[j, :, p] = new[:, t]
        positions = np.array([*range(sinks), *range(lo, self.seen + n)], dtype=int)
        self.seen += n
        return out[0], out[1], positions

    def __len__(self):
        return self.seen
