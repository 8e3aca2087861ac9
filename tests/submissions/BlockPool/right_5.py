import heapq
from collections import Counter

import numpy as np


class BlockPool:
    # a heap of freed blocks beside a frontier of never used ones
    def __init__(self, n_blocks, block_size, n_kv_heads, head_dim):
        self.k, self.v = (np.zeros((n_blocks, n_kv_heads, block_size, head_dim)) for _ in "kv")
        self._n, self._frontier, self._heap, self._held = n_blocks, 0, [], Counter()

    @property
    def n_free(self):
        return self._n - self._frontier + len(self._heap)

    def allocate(self):
        if self._heap:
            block = heapq.heappop(self._heap)
        elif self._frontier < self._n:
            block, self._frontier = self._frontier, self._frontier + 1
        else:
            raise MemoryError("all blocks are in use")
        self._held[block] += 1
        return block

    def count(self, block):
        return self._held[block]

    def retain(self, block):
        if self._held[block] <= 0:
            raise ValueError("not in use")
        self._held.update([block])

    def release(self, block):
        if self._held[block] <= 0:
            raise ValueError("not in use")
        self._held.subtract([block])
        if self._held[block] == 0:
            heapq.heappush(self._heap, block)
