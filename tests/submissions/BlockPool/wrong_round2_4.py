# WRONG: a failed allocate() has counted already: after a MemoryError n_free is -1, and a block released later cannot be had.
import numpy as np


class BlockPool:
    def __init__(self, n_blocks, block_size, n_kv_heads, head_dim):
        shape = (n_blocks, n_kv_heads, block_size, head_dim)
        self.k, self.v = np.zeros(shape), np.zeros(shape)
        self.free = set(range(n_blocks))
        self.counts = {}
        self._n_free = n_blocks

    def allocate(self):
        self._n_free -= 1
        if self._n_free < 0:
            raise MemoryError("no free block")
        block = self.free.pop()
        self.counts[block] = 1
        return block

    def retain(self, block):
        if block not in self.counts:
            raise ValueError(block)
        self.counts[block] += 1

    def release(self, block):
        if block not in self.counts:
            raise ValueError(block)
        self.counts[block] -= 1
        if self.counts[block] == 0:
            del self.counts[block]
            self.free.add(block)
            self._n_free += 1

    def count(self, block):
        return self.counts[block]

    @property
    def n_free(self):
        return self._n_free
