import numpy as np


class PagedCache:
    # token by token, after the need has been counted
    def __init__(self, pool):
        self.pool, self.block_table, self.n = pool, [], 0

    def __len__(self):
        return self.n

    def append(self, k_new, v_new):
        pool, size, n_new = self.pool, self.pool.block_size, k_new.shape[1]
        if n_new == 0:
            return
        need = -(-(self.n + n_new) // size) - len(self.block_table)
        tail_shared = self.n % size > 0 and pool.count(self.block_table[-1]) > 1
        if need + tail_shared > pool.n_free:
            raise MemoryError("too few free blocks")
        if tail_shared:
            old, new = self.block_table[-1], pool.allocate()
            pool.k[new], pool.v[new] = pool.k[old], pool.v[old]
            self.block_table[-1] = new
            pool.release(old)
        for t in range(n_new):
            slot = self.n % size
            if slot == 0:
                self.block_table.append(pool.allocate())
            pool.k[self.block_table[-1], :, slot] = k_new[:, t]
            pool.v[self.block_table[-1], :, slot] = v_new[:, t]
            self.n += 1

    def gather(self):
        out = []
        for store in (self.pool.k, self.pool.v):
            rows = store[np.array(self.block_table, dtype=int)]  # (blocks, heads, size, dim)
            flat = rows.transpose(1, 0, 2, 3).reshape(store.shape[1], -1, store.shape[3])
            out.append(flat[:, : self.n].copy())
        return tuple(out)

    def fork(self):
        child = PagedCache(self.pool)
        child.block_table, child.n = list(self.block_table), self.n
        for block in self.block_table:
            self.pool.retain(block)
        return child

    def free(self):
        while self.block_table:
            self.pool.release(self.block_table.pop())
        self.n = 0
