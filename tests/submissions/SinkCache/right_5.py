import numpy as np


class SinkCache:
    # one preallocated store of n_sinks + window slots; sinks in slot p, others behind them in a ring
    def __init__(self, n_kv_heads, head_dim, n_sinks, window):
        self.a, self.w, self.n = n_sinks, window, 0
        self.size = (n_kv_heads, n_sinks + window, head_dim)
        self.k = self.v = None

    def _slot(self, p):
        return np.where(p < self.a, p, self.a + (p - self.a) % self.w)

    def append(self, k_new, v_new):
        if self.k is None:
            self.k, self.v = np.zeros(self.size, k_new.dtype), np.zeros(self.size, v_new.dtype)
        n = k_new.shape[1]
        p = np.arange(self.n)[-(self.w - 1) :] if self.w > 1 else np.arange(0)
        first = p[0] if p.size else self.n
        p = np.concatenate([np.arange(min(self.a, first)), p])
        k = np.concatenate([np.take(self.k, self._slot(p), axis=1), k_new], axis=1)
        v = np.concatenate([np.take(self.v, self._slot(p), axis=1), v_new], axis=1)
        for t in range(n):
            s = int(self._slot(self.n + t))
            self.k[:, s], self.v[:, s] = k_new[:, t], v_new[:, t]
        positions = np.concatenate([p, np.arange(self.n, self.n + n)])
        self.n += n
        return k, v, positions

    def __len__(self):
        return self.n
