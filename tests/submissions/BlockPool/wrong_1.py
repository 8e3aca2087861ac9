# release frees the block at once, though a second holder is left (allocate, retain, release).
import numpy as np


class BlockPool:
    def __init__(self, n_blocks, block_size, n_kv_heads, head_dim):
        self.k = np.zeros((n_blocks, n_kv_heads, block_size, head_dim))
        self.v = np.zeros((n_blocks, n_kv_heads, block_size, head_dim))
        self._free, self._count = list(range(n_blocks)), {}

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
        del self._count[block]
        self._free.append(block)

    def count(self, block):
        return self._count[block]

    @property
    def n_free(self):
        return len(self._free)
