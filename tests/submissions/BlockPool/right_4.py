import numpy as np


class BlockPool:
    # a linked free list: _next[b] is the free block after b; n_free is a plain attribute
    def __init__(self, n_blocks, block_size, n_kv_heads, head_dim):
        self.k = np.ones((n_blocks, n_kv_heads, block_size, head_dim), dtype=np.float64)
        self.v = self.k.copy()
        self.n_free = n_blocks
        self._head = 0 if n_blocks else None
        self._next = [b + 1 for b in range(n_blocks)]
        if n_blocks:
            self._next[-1] = None
        self._count = {b: 0 for b in range(n_blocks)}

    def allocate(self):
        block = self._head
        if block is None:
            raise MemoryError("no block is free")
        self._head, self._count[block] = self._next[block], 1
        self.n_free -= 1
        return block

    def retain(self, block):
        if self._count.get(block, 0) < 1:
            raise ValueError(f"{block} is free or unknown")
        self._count[block] += 1

    def release(self, block):
        if self._count.get(block, 0) < 1:
            raise ValueError(f"{block} is free or unknown")
        self._count[block] -= 1
        if self._count[block] == 0:
            self._next[block], self._head = self._head, block
            self.n_free += 1

    def count(self, block):
        if self._count.get(block, 0) < 1:
            raise ValueError(f"{block} is free or unknown")
        return self._count[block]
