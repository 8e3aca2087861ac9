# a dict from position to row
import numpy as np


class SinkCache:
    def __init__(self, n_kv_heads, head_dim, n_sinks, window):
        self.n_sinks, self.before, self.seen, self.rows = n_sinks, window - 1, 0, {}

    def append(self, k_new, v_new):
        start, n_new = self.seen, k_new.shape[1]
        old = sorted(self.rows)
        k = np.concatenate([self.rows[p][0] for p in old] + [k_new], axis=1)
        v = np.concatenate([self.rows[p][1] for p in old] + [v_new], axis=1)
        self.seen = start + n_new
        for t in range(n_new):
            if start + t < self.n_sinks or start + t >= self.seen - self.before:
                self.rows[start + t] = (k_new[:, [t]], v_new[:, [t]])
        for p in old:
            if self.n_sinks <= p < self.seen - self.before:
                del self.rows[p]
        return k, v, np.array(old + list(range(start, self.seen)), dtype=int)

    def __len__(self):
        return self.seen
