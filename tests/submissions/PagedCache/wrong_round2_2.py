# WRONG: the shared block is copied before the rest is known to fit: an append that needs the copy and more new blocks than are left raises MemoryError with the block table and the counts changed.
import numpy as np


class PagedCache:
    def __init__(self, pool):
        self.pool, self.block_table, self.n = pool, [], 0

    def append(self, k_new, v_new):
        pool, n_new, size = self.pool, k_new.shape[1], self.pool.block_size
        end = self.n + n_new
        fill = self.n % size
        copy = n_new > 0 and fill > 0 and pool.count(self.block_table[-1]) > 1
        more = -(-end // size) - len(self.block_table)
        if copy:
            old, new = self.block_table[-1], pool.allocate()
            pool.k[new, :, :fill] = pool.k[old, :, :fill]
            pool.v[new, :, :fill] = pool.v[old, :, :fill]
            pool.release(old)
            self.block_table[-1] = new
        if more > pool.n_free:
            raise MemoryError("too few free blocks")
        self.block_table += [pool.allocate() for _ in range(more)]
        at, taken = self.n, 0
        while at < end:
            block, slot = self.block_table[at // size], at % size
            n = min(size - slot, end - at)
            pool.k[block, :, slot : slot + n] = k_new[:, taken : taken + n]
            pool.v[block, :, slot : slot + n] = v_new[:, taken : taken + n]
            at, taken = at + n, taken + n
        self.n = end

    def gather(self):
        return self._rows(self.pool.k), self._rows(self.pool.v)

    def _rows(self, store):
        _, heads, size, dim = store.shape
        rows = (
            store[np.array(self.block_table, dtype=int)]
            .transpose(1, 0, 2, 3)
            .reshape(heads, len(self.block_table) * size, dim)
        )
        return rows[:, : self.n].copy()

    def fork(self):
        child = PagedCache(self.pool)
        child.block_table, child.n = list(self.block_table), self.n
        for block in self.block_table:
            self.pool.retain(block)
        return child

    def free(self):
        for block in self.block_table:
            self.pool.release(block)
        self.block_table, self.n = [], 0

    def __len__(self):
        return self.n
