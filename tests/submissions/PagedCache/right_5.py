import copy

import numpy as np


class PagedCache:
    # releases the shared tail's share only after everything has worked; fork by copy.copy
    def __init__(self, pool):
        self.pool, self.block_table, self._n = pool, [], 0

    def append(self, k_new, v_new):
        size, heads = self.pool.block_size, self.pool.k.shape[1]
        part = self._n % size
        n_new = k_new.shape[1]
        if not n_new:
            return
        keep = self._n // size  # full blocks are never touched
        tail = self.block_table[keep:]
        writable = tail and self.pool.count(tail[0]) == 1
        n_pages = -(-(part + n_new) // size)
        n_fresh = n_pages - 1 if writable else n_pages
        if n_fresh > self.pool.n_free:
            raise MemoryError(f"need {n_fresh} blocks, {self.pool.n_free} are free")
        fresh = [self.pool.allocate() for _ in range(n_fresh)]
        pages = tail + fresh if writable else fresh
        for store, new in ((self.pool.k, k_new), (self.pool.v, v_new)):
            if tail and not writable:
                store[pages[0], :, :part] = store[tail[0], :, :part]
            for h in range(heads):
                for t in range(n_new):
                    page, slot = divmod(part + t, size)
                    store[pages[page], h, slot] = new[h, t]
        if tail and not writable:
            self.pool.release(tail[0])
        self.block_table[keep:] = pages
        self._n += n_new

    def gather(self):
        size = self.pool.block_size

        def collect(store):
            parts = [store[b].copy() for b in self.block_table]
            if not parts:
                return np.zeros((store.shape[1], 0, store.shape[3]))
            return np.concatenate(parts, axis=1)[:, : self._n]

        assert len(self.block_table) == -(-self._n // size)
        return collect(self.pool.k), collect(self.pool.v)

    def fork(self):
        child = copy.copy(self)
        child.block_table = self.block_table[:]
        for block in child.block_table:
            self.pool.retain(block)
        return child

    def free(self):
        table, self.block_table, self._n = self.block_table, [], 0
        for block in table[::-1]:
            self.pool.release(block)

    def __len__(self):
        return self._n
