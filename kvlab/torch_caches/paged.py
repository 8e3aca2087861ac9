"""A PyTorch cache in blocks of fixed size from one pool, found through a block table."""

import torch
from jaxtyping import Float

from kvlab.caches.blocks import CountedBlocks, Event, SequenceInBlocks
from kvlab.torch_caches.protocol import Pair, Rows, expect_rows

Blocks = Float[torch.Tensor, "n_blocks n_kv_heads block_size head_dim"]


class BlockPool(CountedBlocks):
    """Storage for keys and values in `n_blocks` blocks of `block_size` slots, with a count of holders for each block.

    `kvlab.caches.BlockPool` in PyTorch. A block with count 0 is free. Whoever takes one holds it; whoever shares it
    retains it; the last release frees it. All is allocated once.

    Args:
        n_blocks, block_size: blocks in all, and tokens in one.
        n_kv_heads, head_dim: of one token's keys.
        dtype, device: of keys and values.
        events: a list that is given what the caches of this pool do; None records nothing.

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
        events: list[Event] | None = None,
    ) -> None:
        super().__init__(n_blocks, block_size, n_kv_heads, head_dim, events)
        self.k: Blocks = torch.zeros(self.shape, dtype=dtype, device=device)
        self.v: Blocks = torch.zeros_like(self.k)


class PagedCache(SequenceInBlocks):
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

    def update(self, k: Rows, v: Rows) -> None:
        """Write the new rows behind those stored; `gather` gives them all.

        Args:
            k, v: (1, n_kv_heads, n_new, head_dim), of the pool's dtype and on its device; n_new may be 0.

        Raises:
            ValueError: another shape, dtype or device than the pool's.
            MemoryError: the pool has too few free blocks. In either case nothing has changed, here or in the pool.
        """
        pool = self.pool
        expect_rows(k, v, pool.k, batch=1, n_kv_heads=pool.n_kv_heads, head_dim=pool.head_dim)
        self._write(k[0], v[0])

    def gather(self) -> Pair:
        """All rows in two new tensors (1, n_kv_heads, n_total, head_dim), oldest first. Copies every row, each time."""
        return self._in_order(self.pool.k), self._in_order(self.pool.v)

    def _in_order(self, blocks: Blocks) -> Float[torch.Tensor, "1 n_kv_heads n_total head_dim"]:
        """The rows of this table out of the pool's blocks."""
        n_blocks, n_kv_heads, size, head_dim = blocks.shape
        # One row for each block and head: a single take then writes the result in order, with no second copy.
        table = torch.tensor(self.block_table, dtype=torch.long, device=blocks.device)
        rows = table * n_kv_heads + torch.arange(n_kv_heads, device=blocks.device)[:, None]
        taken = blocks.view(n_blocks * n_kv_heads, size, head_dim).index_select(0, rows.flatten())
        return taken.view(1, n_kv_heads, len(self.block_table) * size, head_dim)[:, :, : self._length]
