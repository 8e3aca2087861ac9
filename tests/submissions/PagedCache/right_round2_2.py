# takes blocks, and gives them back when there are too few; rows are addressed by flat arrays of block and slot
import numpy as np


class PagedCache:
    def __init__(self, pool):
        self.pool = pool
        self.block_table = []
        self.length = 0

    def append(self, k_new, v_new):
        pool, size = self.pool, self.pool.block_size
        where = np.arange(self.length, self.length + k_new.shape[1])
        if where.size == 0:
            return
        first, last = where[0] // size, where[-1] // size
        keep = self.block_table[:first]
        partial = self.block_table[first:]
        if partial and pool.count(partial[0]) == 1:
            keep, partial = keep + partial, []
        taken = []
        try:
            while len(keep) + len(taken) <= last:
                taken.append(pool.allocate())
        except MemoryError:
            while taken:
                pool.release(taken.pop())
            raise
        if partial:
            used = self.length % size
            pool.k[taken[0]][:, :used] = pool.k[partial[0]][:, :used]
            pool.v[taken[0]][:, :used] = pool.v[partial[0]][:, :used]
            pool.release(partial[0])
        self.block_table = keep + taken
        self.length += where.size
        blocks, slots = self._address(where)
        pool.k[blocks, :, slots] = k_new.swapaxes(0, 1)
        pool.v[blocks, :, slots] = v_new.swapaxes(0, 1)

    def _address(self, where):
        return np.array(self.block_table, dtype=int)[where // self.pool.block_size], where % self.pool.block_size

    def gather(self):
        blocks, slots = self._address(np.arange(self.length))
        return self.pool.k[blocks, :, slots].swapaxes(0, 1), self.pool.v[blocks, :, slots].swapaxes(0, 1)

    def fork(self):
        twin = PagedCache(self.pool)
        twin.length = self.length
        for block in self.block_table:
            self.pool.retain(block)
            twin.block_table.append(block)
        return twin

    def free(self):
        while self.block_table:
            self.pool.release(self.block_table.pop())
        self.length = 0

    def __len__(self):
        return self.length
