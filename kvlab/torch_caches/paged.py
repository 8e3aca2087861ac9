"""A PyTorch cache in blocks of fixed size from one pool, found through a block table."""

import torch
from jaxtyping import Float

from kvlab.shapes import expect_count
from kvlab.torch_caches.protocol import Pair, Rows, expect_rows

Blocks = Float[torch.Tensor, "n_blocks n_kv_heads block_size head_dim"]


class BlockPool:
    """Storage for keys and values in `n_blocks` blocks of `block_size` slots, with a count of holders for each block.

    `kvlab.caches.BlockPool` in PyTorch. A block with count 0 is free. Whoever takes one holds it; whoever shares it
    retains it; the last release frees it. All is allocated once.

    Args:
        n_blocks, block_size: blocks in all, and tokens in one.
        n_kv_heads, head_dim: of one token's keys.
        dtype, device: of keys and values.

    Attributes:
        k, v: (n_blocks, n_kv_heads, block_size, head_dim).

    Source: Kwon et al. 2023, "Efficient Memory Management for Large Language Model Serving with PagedAttention",
    section 4.

    >>> pool = BlockPool(n_blocks=3, block_size=4, n_kv_heads=2, head_dim=8)
    >>> block = pool.allocate()
    >>> pool.retain(block)
    >>> pool.release(block)
    >>> pool.count(block), pool.n_free
    (1, 2)
    """

    def __init__(
        self,
        n_blocks: int,
        block_size: int,
        n_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        self.n_blocks = expect_count("n_blocks", n_blocks, 1)
        self.block_size = expect_count("block_size", block_size, 1)
        self.n_kv_heads = expect_count("n_kv_heads", n_kv_heads, 1)
        self.head_dim = expect_count("head_dim", head_dim, 1)
        self.k: Blocks = torch.zeros(n_blocks, n_kv_heads, block_size, head_dim, dtype=dtype, device=device)
        self.v: Blocks = torch.zeros_like(self.k)
        self._counts = [0] * n_blocks
        self._free = list(range(n_blocks))[::-1]  # a stack: the lowest number first, then the one freed last

    def allocate(self) -> int:
        """Hand out a free block, with count 1. MemoryError when no block is free."""
        if not self._free:
            raise MemoryError(f"pool empty: all {self.n_blocks} blocks are in use, release one or make the pool larger")
        block = self._free.pop()
        self._counts[block] = 1
        return block

    def retain(self, block: int) -> None:
        """One more holder of a block in use. ValueError when it is not in use."""
        self._counts[self._used("retain", block)] += 1

    def release(self, block: int) -> None:
        """One holder less; the last one's release makes the block free. ValueError when it is not in use."""
        block = self._used("release", block)
        self._counts[block] -= 1
        if self._counts[block] == 0:
            self._free.append(block)

    def count(self, block: int) -> int:
        """Holders of a block in use. ValueError when it is not in use."""
        return self._counts[self._used("count", block)]

    @property
    def n_free(self) -> int:
        """Blocks that nobody holds."""
        return len(self._free)

    @property
    def n_bytes(self) -> int:
        """Bytes of the whole pool, in use or free."""
        return self.k.nbytes + self.v.nbytes

    def _used(self, what: str, block: int) -> int:
        number = expect_count("block", block)
        if number >= self.n_blocks:
            raise ValueError(f"{what}: the pool has blocks 0 to {self.n_blocks - 1}, got {number}")
        if self._counts[number] == 0:
            raise ValueError(f"{what}: block {number} is not in use")
        return number


class PagedCache:
    """The keys and values of one sequence, in blocks of a pool that other sequences use too.

    `kvlab.caches.PagedCache` with a batch axis of size 1: a cache is one sequence, since each has a length, a table and
    forks of its own. Sequences that run together have one cache each over the same pool.

    Token t is in slot t % block_size of block `block_table[t // block_size]`. An update writes the new rows and copies
    no old one, except those of a shared last block.

    Attributes:
        block_table: the block of each logical block, first tokens first. To read; the cache changes it.

    >>> pool = BlockPool(n_blocks=8, block_size=4, n_kv_heads=2, head_dim=3)
    >>> cache = PagedCache(pool)
    >>> cache.update(torch.ones(1, 2, 5, 3), torch.ones(1, 2, 5, 3))
    >>> other = cache.fork()
    >>> other.update(torch.zeros(1, 2, 1, 3), torch.zeros(1, 2, 1, 3))
    >>> cache.block_table, other.block_table, len(other), tuple(other.gather()[0].shape)
    ([0, 1], [0, 2], 6, (1, 2, 6, 3))
    """

    def __init__(self, pool: BlockPool) -> None:
        self.pool = pool
        self.block_table: list[int] = []
        self._length = 0

    def update(self, k: Rows, v: Rows) -> None:
        """Write the new rows behind those stored; `gather` gives them all.

        Args:
            k, v: (1, n_kv_heads, n_new, head_dim), of the pool's dtype and on its device; n_new may be 0.

        Raises:
            ValueError: another shape, dtype or device than the pool's.
            MemoryError: the pool has too few free blocks. In either case nothing has changed, here or in the pool.
        """
        pool, size = self.pool, self.pool.block_size
        n_new = expect_rows(k, v, pool.k, batch=1, n_kv_heads=pool.n_kv_heads, head_dim=pool.head_dim)
        if n_new:
            self._reserve(n_new)
        done = 0
        while done < n_new:
            block, slot = self.block_table[self._length // size], self._length % size
            n = min(size - slot, n_new - done)
            pool.k[block, :, slot : slot + n] = k[0, :, done : done + n]
            pool.v[block, :, slot : slot + n] = v[0, :, done : done + n]
            self._length += n
            done += n

    def gather(self) -> Pair:
        """All rows in two new tensors (1, n_kv_heads, n_total, head_dim), oldest first. Copies every row, each time."""
        return self._in_order(self.pool.k), self._in_order(self.pool.v)

    def fork(self) -> "PagedCache":
        """A second sequence with the same tokens. Shares every block; whoever writes a shared one first copies it."""
        other = PagedCache(self.pool)
        for block in self.block_table:
            self.pool.retain(block)
        other.block_table, other._length = list(self.block_table), self._length
        return other

    def free(self) -> None:
        """Let go of every block. The cache is empty then, as new; freeing an empty one does nothing."""
        for block in self.block_table:
            self.pool.release(block)
        self.block_table, self._length = [], 0

    def reset(self) -> None:
        """The same as free."""
        self.free()

    def __len__(self) -> int:
        return self._length

    @property
    def n_bytes(self) -> int:
        """Bytes of the blocks in this table, shared ones included: summed over forks it counts those again."""
        return len(self.block_table) * (self.pool.n_bytes // self.pool.n_blocks)

    def _reserve(self, n_new: int) -> None:
        """Make the last block this sequence's own and take all blocks that n_new tokens need, or change nothing."""
        pool, size = self.pool, self.pool.block_size
        n_more = -(-(self._length + n_new) // size) - len(self.block_table)
        # Only a partly filled block is written again, so only the last one can need a copy.
        copy = self._length % size > 0 and pool.count(self.block_table[-1]) > 1
        if n_more + copy > pool.n_free:
            raise MemoryError(
                f"pool empty: {n_new} more tokens need {n_more + copy} more blocks and {pool.n_free} of "
                f"{pool.n_blocks} are free, free a sequence or make the pool larger"
            )
        if copy:
            old, new = self.block_table[-1], pool.allocate()
            pool.k[new], pool.v[new] = pool.k[old], pool.v[old]
            self.block_table[-1] = new
            pool.release(old)
        self.block_table += [pool.allocate() for _ in range(n_more)]

    def _in_order(self, blocks: Blocks) -> Float[torch.Tensor, "1 n_kv_heads n_total head_dim"]:
        """The rows of this table out of the pool's blocks."""
        n_blocks, n_kv_heads, size, head_dim = blocks.shape
        # One row for each block and head: a single take then writes the result in order, with no second copy.
        table = torch.tensor(self.block_table, dtype=torch.long, device=blocks.device)
        rows = table * n_kv_heads + torch.arange(n_kv_heads, device=blocks.device)[:, None]
        taken = blocks.view(n_blocks * n_kv_heads, size, head_dim).index_select(0, rows.flatten())
        return taken.view(1, n_kv_heads, len(self.block_table) * size, head_dim)[:, :, : self._length]
