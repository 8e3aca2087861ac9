# WRONG: retain of a block that was released to the end does not raise ValueError (its count of 0 is still on record); release does raise.
import numpy as np


class BlockPool:
    def __init__(self, n_blocks, block_size, n_kv_heads, head_dim):
        shape = (n_blocks, n_kv_heads, block_size, head_dim)
        self.k, self.v = np.zeros(shape), np.zeros(shape)
        self.free = set(range(n_blocks))
        self.counts = {}

    def allocate(self):
        if not self.free:
            raise MemoryError("no free block")
        block = self.free.pop()
        self.counts[block] = 1
        return block

    def retain(self, block):
        if block not in self.counts:
            raise ValueError(block)
        self.counts[block] += 1

    def release(self, block):
        if not self.counts.get(block):
            raise ValueError(block)
        self.counts[block] -= 1
        if self.counts[block] == 0:
            self.free.add(block)

    def count(self, block):
        return self.counts[block]

    @property
    def n_free(self):
        return len(self.free)
