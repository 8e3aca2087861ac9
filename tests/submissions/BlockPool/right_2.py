from collections import deque

import numpy as np


class BlockPool:
    # blocks in use live in a dict; the longest free one goes out first; k and v are two halves of one array
    def __init__(self, n_blocks, block_size, n_kv_heads, head_dim):
        both = np.full((2, n_blocks, n_kv_heads, block_size, head_dim), np.nan)
        self.k, self.v = both
        self.free, self.used = deque(range(n_blocks)), {}

    n_free = property(lambda self: len(self.free))

    def allocate(self):
        try:
            block = self.free.popleft()
        except IndexError:
            raise MemoryError("the pool is full") from None
        self.used[block] = 1
        return block

    def retain(self, block):
        try:
            self.used[block] += 1
        except KeyError:
            raise ValueError(block) from None

    def release(self, block):
        if block not in self.used:
            raise ValueError(block)
        if self.used[block] == 1:
            del self.used[block]
            self.free.append(int(block))
        else:
            self.used[block] -= 1

    def count(self, block):
        return self.used.get(block, 0)
