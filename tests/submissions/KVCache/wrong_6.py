"""Wrong: always stores float64, where the dtype follows the first append (its writer took that for allowed)."""

from array import array

import numpy as np


class KVCache:
    def __init__(self, n_kv_heads, head_dim):
        self.head_dim = head_dim
        self.k = [array("d") for _ in range(n_kv_heads)]
        self.v = [array("d") for _ in range(n_kv_heads)]

    def __len__(self):
        return len(self.k[0]) // self.head_dim

    def append(self, k_new, v_new):
        result = []
        for store, new in ((self.k, k_new), (self.v, v_new)):
            for head, rows in zip(store, new, strict=True):
                head.extend(rows.ravel().tolist())
            result.append(np.array([list(head) for head in store]).reshape(len(store), len(self), self.head_dim))
        return tuple(result)
