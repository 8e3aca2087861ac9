import numpy as np


class BlockPool:
    def __init__(self, n_blocks, block_size, n_kv_heads, head_dim):
        shape = (n_blocks, n_kv_heads, block_size, head_dim)
        self.k, self.v = np.empty(shape), np.empty(shape)
        self._holders = [0] * n_blocks
        self._free = list(range(n_blocks))

    def _check(self, block):
        if not 0 <= block < len(self._holders) or self._holders[block] == 0:
            raise ValueError(f"block {block} is not in use")

    def allocate(self):
        if not self._free:
            raise MemoryError("no free block")
        block = self._free.pop()
        self._holders[block] = 1
        return block

    def retain(self, block):
        self._check(block)
        self._holders[block] += 1

    def release(self, block):
        self._check(block)
        self._holders[block] -= 1
        if not self._holders[block]:
            self._free.append(block)

    def count(self, block):
        self._check(block)
        return self._holders[block]

    @property
    def n_free(self):
        return len(self._free)
