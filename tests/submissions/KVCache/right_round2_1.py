"""Stores raw bytes, token after token, and decodes them at every append."""

import numpy as np


class KVCache:
    def __init__(self, n_kv_heads, head_dim):
        self.heads, self.dim = n_kv_heads, head_dim
        self.data = [bytearray(), bytearray()]
        self.types = None
        self.count = 0

    def append(self, k_new, v_new):
        if self.types is None:
            self.types = [k_new.dtype, v_new.dtype]
        self.count += k_new.shape[1]
        result = []
        for data, dtype, new in zip(self.data, self.types, (k_new, v_new), strict=False):
            data += np.ascontiguousarray(new.transpose(1, 0, 2), dtype=dtype).tobytes()
            flat = np.frombuffer(bytes(data), dtype=dtype).reshape(self.count, self.heads, self.dim)
            result.append(flat.transpose(1, 0, 2).copy())
        return tuple(result)

    def __len__(self):
        return self.count
