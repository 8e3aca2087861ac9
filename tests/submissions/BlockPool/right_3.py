import numpy as np


class BlockPool:
    # only a numpy array of counts; free blocks are searched for; ids are numpy ints
    def __init__(self, n_blocks, block_size, n_kv_heads, head_dim):
        self.k = np.zeros([n_blocks, n_kv_heads, block_size, head_dim])
        self.v = np.zeros_like(self.k)
        self.counts = np.zeros(n_blocks, dtype=np.int64)

    def _use(self, block):
        if block not in np.flatnonzero(self.counts):
            raise ValueError("not in use")
        return block

    def allocate(self):
        free = np.flatnonzero(self.counts == 0)
        if free.size == 0:
            raise MemoryError
        self.counts[free[-1]] = 1
        return free[-1]

    def retain(self, block):
        self.counts[self._use(block)] += 1

    def release(self, block):
        self.counts[self._use(block)] -= 1

    def count(self, block):
        return self.counts[self._use(block)]

    @property
    def n_free(self):
        return int((self.counts == 0).sum())
