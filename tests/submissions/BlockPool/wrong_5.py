# k and v are one and the same array: a write to pool.v changes pool.k.
import numpy as np


class BlockPool:
    def __init__(self, n_blocks, block_size, n_kv_heads, head_dim):
        self.k = self.v = np.zeros((n_blocks, n_kv_heads, block_size, head_dim))
        self._free, self._count = set(range(n_blocks)), {}

    def allocate(self):
        if not self._free:
            raise MemoryError("no free block")
        block = self._free.pop()
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
            self._free.add(block)

    def count(self, block):
        return self._count[block]

    @property
    def n_free(self):
        return len(self._free)
