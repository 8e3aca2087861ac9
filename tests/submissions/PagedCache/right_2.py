import numpy as np


class PagedCache:
    # takes all blocks first and gives them back when the pool runs dry; block_table is made on demand
    def __init__(self, pool):
        self._pool, self._blocks, self._len = pool, (), 0

    def _take(self, n):
        got = []
        try:
            for _ in range(n):
                got.append(self._pool.allocate())
        except MemoryError:
            for block in reversed(got):
                self._pool.release(block)
            raise
        return got

    def append(self, k_new, v_new):
        pool, size = self._pool, self._pool.block_size
        old, total = self._len, self._len + k_new.shape[1]
        if total == old:
            return None
        blocks = list(self._blocks)
        used = old % size
        shared = bool(used) and pool.count(blocks[-1]) > 1
        fresh = self._take(-(-total // size) - len(blocks) + shared)
        if shared:
            source, blocks[-1] = blocks[-1], fresh.pop(0)
            for store in (pool.k, pool.v):
                store[blocks[-1], :, :used] = store[source, :, :used]
            pool.release(source)
        blocks += fresh
        start = old
        while start < total:
            slot = start % size
            n = min(size - slot, total - start)
            here = blocks[start // size]
            pool.k[here, :, slot : slot + n] = k_new[:, start - old : start - old + n]
            pool.v[here, :, slot : slot + n] = v_new[:, start - old : start - old + n]
            start += n
        self._blocks, self._len = tuple(blocks), total

    @property
    def block_table(self):
        return [int(b) for b in self._blocks]

    def gather(self):
        def rows(store):
            out = np.zeros((store.shape[1], self._len, store.shape[3]))
            for t in range(self._len):
                block, slot = divmod(t, self._pool.block_size)
                out[:, t] = store[self._blocks[block], :, slot]
            return out

        return rows(self._pool.k), rows(self._pool.v)

    def fork(self):
        twin = type(self)(self._pool)
        twin._blocks, twin._len = self._blocks, self._len
        [self._pool.retain(b) for b in twin._blocks]
        return twin

    def free(self):
        for b in self._blocks:
            self._pool.release(b)
        self._blocks, self._len = (), 0

    def __len__(self):
        return self._len
