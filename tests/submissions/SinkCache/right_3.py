from collections import deque

import numpy as np


class SinkCache:
    # a token falls out of a deque of window - 1; if it is a sink it lands in a list that only grows to n_sinks
    def __init__(self, n_kv_heads, head_dim, n_sinks, window):
        self.sinks, self.recent = [], deque()
        self.n_sinks, self.room, self.n = n_sinks, window - 1, 0
        self.shape = (n_kv_heads, 0, head_dim)

    def append(self, k_new, v_new):
        out = self.sinks + list(self.recent)
        for t in range(k_new.shape[1]):
            row = self.n, np.array(k_new[:, t]), np.array(v_new[:, t])
            self.n += 1
            out.append(row)
            self.recent.append(row)
            while len(self.recent) > self.room:
                old = self.recent.popleft()
                if old[0] < self.n_sinks:
                    self.sinks.append(old)
        if not out:
            return np.zeros(self.shape), np.zeros(self.shape), np.arange(0)
        return (
            np.stack([r[1] for r in out], axis=1),
            np.stack([r[2] for r in out], axis=1),
            np.array([r[0] for r in out]),
        )

    def __len__(self):
        return self.n
