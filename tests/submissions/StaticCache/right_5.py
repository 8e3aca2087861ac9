"""NumPy arrays hold the bytes; torch.from_numpy shares them."""

import numpy as np
import torch


class StaticCache:
    def __init__(self, batch, n_kv_heads, max_len, head_dim):
        self.arrays = tuple(np.zeros((batch, n_kv_heads, max_len, head_dim), dtype=np.float32) for _ in "kv")
        self.max_len = max_len
        self.filled = slice(0, 0)

    def __len__(self):
        return self.filled.stop

    def update(self, k, v):
        start, stop = self.filled.stop, self.filled.stop + k.shape[2]
        if stop not in range(self.max_len + 1):
            raise ValueError("too many tokens")
        for array, new in zip(self.arrays, (k, v), strict=True):
            array[:, :, start:stop] = new.detach().numpy()
        self.filled = slice(0, stop)
        k_all, v_all = (torch.from_numpy(array)[:, :, self.filled] for array in self.arrays)
        return k_all, v_all

    def reset(self):
        self.filled = slice(0, 0)
