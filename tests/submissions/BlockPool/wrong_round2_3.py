# WRONG: n_free subtracts holders, not blocks: too small as soon as a block is held twice.
import numpy as np


class BlockPool:
    def __init__(self, n_blocks, block_size, n_kv_heads, head_dim):
        shape = (n_blocks, n_kv_heads, block_size, head_dim)
        self.k, self.v = np.zeros(shape), np.zeros(shape)
        self.n_blocks = n_blocks
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
        if block not in self.counts:
            raise ValueError(block)
        self.counts[block] -= 1
        if self.counts[block] == 0:
            del self.counts[block]
            self.free.add(block)

    def count(self, block):
        return self.counts[block]

    @property
    def n_free(self):
        return max(0, self.n_blocks - sum(self.counts.values()))
