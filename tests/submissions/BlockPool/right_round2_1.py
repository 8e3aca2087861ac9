# an array of counts and nothing else
import numpy as np


class BlockPool:
    def __init__(self, n_blocks, block_size, n_kv_heads, head_dim):
        self.k, self.v = np.full((2, n_blocks, n_kv_heads, block_size, head_dim), np.nan)
        self.holders = np.zeros(n_blocks, dtype=int)

    def allocate(self):
        (free,) = np.nonzero(self.holders == 0)
        if free.size == 0:
            raise MemoryError("no free block")
        self.holders[free[-1]] = 1
        return int(free[-1])

    def _change(self, block, by):
        if block not in range(len(self.holders)) or self.holders[block] == 0:
            raise ValueError(f"block {block} is not in use")
        self.holders[block] += by

    def retain(self, block):
        self._change(block, 1)

    def release(self, block):
        self._change(block, -1)

    def count(self, block):
        return int(self.holders[block])

    @property
    def n_free(self):
        return int((self.holders == 0).sum())
