"""Token-major storage seen through permute: the views are not contiguous."""

import torch


class StaticCache:
    def __init__(self, batch, n_kv_heads, max_len, head_dim):
        shape = (max_len, batch, n_kv_heads, head_dim)
        self.rows = [torch.zeros(shape, dtype=torch.float32) for _ in range(2)]
        self.length = 0

    def __len__(self):
        return self.length

    def update(self, k, v):
        if self.length + k.shape[-2] > len(self.rows[0]):
            raise ValueError("no room for that many tokens")
        for token_k, token_v in zip(k.unbind(2), v.unbind(2), strict=True):
            self.rows[0][self.length] = token_k
            self.rows[1][self.length] = token_v
            self.length += 1
        return [rows[: self.length].permute(1, 2, 0, 3) for rows in self.rows]

    def reset(self):
        self.length = 0
        for rows in self.rows:
            rows.zero_()
