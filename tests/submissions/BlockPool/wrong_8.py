# Freed blocks count as free but are never handed out again: allocate raises MemoryError once every id was used.
import numpy as np


class BlockPool:
    def __init__(self, n_blocks, block_size, n_kv_heads, head_dim):
        self.k = np.zeros((n_blocks, n_kv_heads, block_size, head_dim))
        self.v = np.zeros((n_blocks, n_kv_heads, block_size, head_dim))
        self._next, self._n, self._count = 0, n_blocks, {}

    def allocate(self):
        if self._next == self._n:
            raise MemoryError("no free block")
        block = self._next
        self._next += 1
        self._count[block] = 1
        return block

    def retain(self, block):
        if block not in self._count:
            raise ValueError(block)
        self._count[block] += 1

    def release(self, block):
        if block not in self._count:
            raise ValueError(block)
        self._count[block] -= 1
        if self._count[block] == 0:
            del self._count[block]

    def count(self, block):
        return self._count[block]

    @property
    def n_free(self):
        return self._n - len(self._count)
