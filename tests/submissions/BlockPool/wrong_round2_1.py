# WRONG: negative ids count from the end: retain(-1) and release(-1) take the last block instead of raising ValueError (last block in use).
import numpy as np


class BlockPool:
    def __init__(self, n_blocks, block_size, n_kv_heads, head_dim):
        shape = (n_blocks, n_kv_heads, block_size, head_dim)
        self.k, self.v = np.zeros(shape), np.zeros(shape)
        self.counts = [0] * n_blocks

    def allocate(self):
        if 0 not in self.counts:
            raise MemoryError("no free block")
        block = self.counts.index(0)
        self.counts[block] = 1
        return block

    def _in_use(self, block):
        if block >= len(self.counts) or block < -len(self.counts) or not self.counts[block]:
            raise ValueError(block)

    def retain(self, block):
        self._in_use(block)
        self.counts[block] += 1

    def release(self, block):
        self._in_use(block)
        self.counts[block] -= 1

    def count(self, block):
        return self.counts[block]

    @property
    def n_free(self):
        return self.counts.count(0)
