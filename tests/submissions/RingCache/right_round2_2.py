# a deque of rows that holds window - 1 of them
from collections import deque

import numpy as np


class RingCache:
    def __init__(self, n_kv_heads, head_dim, window):
        self.rows = deque(maxlen=window - 1)
        self.seen = 0

    def append(self, k_new, v_new):
        old = list(self.rows)
        k = np.concatenate([r[0] for r in old] + [k_new], axis=1)
        v = np.concatenate([r[1] for r in old] + [v_new], axis=1)
        first = self.seen - len(old)
        for t in range(k_new.shape[1]):
            self.rows.append((k_new[:, t : t + 1].copy(), v_new[:, t : t + 1].copy()))
            self.seen += 1
        return k, v, np.arange(first, self.seen)

    def __len__(self):
        return self.seen
