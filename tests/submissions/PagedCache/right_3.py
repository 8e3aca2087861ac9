import numpy as np


class PagedCache:
    # one scatter with block and slot indices for all new tokens; the table is a list of numpy ints
    def __init__(self, pool):
        self.pool = pool
        self.block_table = []
        self.length = np.int64(0)

    def __len__(self):
        return int(self.length)

    def append(self, k_new, v_new):
        p, t = self.pool, np.arange(self.length, self.length + k_new.shape[1])
        if t.size == 0:
            return
        where = t // p.block_size
        new_blocks = int(where[-1]) + 1 - len(self.block_table)
        first = int(where[0])
        copy = first < len(self.block_table) and p.count(self.block_table[first]) > 1
        if new_blocks + int(copy) > p.n_free:
            raise MemoryError("append: the pool is too full")
        if copy:
            before = self.block_table[first]
            self.block_table[first] = np.int64(p.allocate())
            p.k[self.block_table[first]] = p.k[before]
            p.v[self.block_table[first]] = p.v[before]
            p.release(before)
        self.block_table.extend(np.int64(p.allocate()) for _ in range(new_blocks))
        ids = np.array(self.block_table)[where]
        p.k[ids, :, t % p.block_size] = np.swapaxes(k_new, 0, 1)
        p.v[ids, :, t % p.block_size] = np.swapaxes(v_new, 0, 1)
        self.length += t.size

    def gather(self):
        t = np.arange(self.length)
        ids = np.array(self.block_table, dtype=np.int64)[t // self.pool.block_size]
        slot = t % self.pool.block_size
        return tuple(np.moveaxis(s[ids, :, slot], 0, 1) for s in (self.pool.k, self.pool.v))

    def fork(self):
        other = PagedCache(self.pool)
        for block in self.block_table:
            self.pool.retain(block)
            other.block_table.append(block)
        other.length = self.length
        return other

    def free(self):
        for block in self.block_table:
            self.pool.release(block)
        self.block_table = []
        self.length = np.int64(0)
