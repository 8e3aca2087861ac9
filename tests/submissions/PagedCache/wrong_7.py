# A full tail block is copied too: fork at len % block_size == 0, then append (it must never be copied).
import numpy as np


class PagedCache:
    def __init__(self, pool):
        self.pool = pool
        self.block_table = []
        self.length = 0

    def __len__(self):
        return self.length

    def append(self, k_new, v_new):
        pool, size = self.pool, self.pool.block_size
        n_new = k_new.shape[1]
        if n_new == 0:
            return
        n_blocks = (self.length + n_new + size - 1) // size
        partial = len(self.block_table) > 0
        shared = partial and pool.count(self.block_table[-1]) > 1
        need = n_blocks - len(self.block_table) + int(shared)
        if need > pool.n_free:
            raise MemoryError(f"{need} blocks needed, {pool.n_free} free")
        if shared:
            old = self.block_table[-1]
            new = pool.allocate()
            pool.k[new] = pool.k[old]
            pool.v[new] = pool.v[old]
            pool.release(old)
            self.block_table[-1] = new
        while len(self.block_table) < n_blocks:
            self.block_table.append(pool.allocate())
        for i in range(n_new):
            block, slot = divmod(self.length + i, size)
            pool.k[self.block_table[block], :, slot] = k_new[:, i]
            pool.v[self.block_table[block], :, slot] = v_new[:, i]
        self.length += n_new

    def gather(self):
        _, n_kv_heads, _, head_dim = self.pool.k.shape
        k = np.empty((n_kv_heads, self.length, head_dim))
        v = np.empty((n_kv_heads, self.length, head_dim))
        for t in range(self.length):
            block, slot = divmod(t, self.pool.block_size)
            k[:, t] = self.pool.k[self.block_table[block], :, slot]
            v[:, t] = self.pool.v[self.block_table[block], :, slot]
        return k, v

    def fork(self):
        child = PagedCache(self.pool)
        child.block_table = list(self.block_table)
        child.length = self.length
        for block in self.block_table:
            self.pool.retain(block)
        return child

    def free(self):
        for block in self.block_table:
            self.pool.release(block)
        self.block_table = []
        self.length = 0
