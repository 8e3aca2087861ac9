"""A cache in blocks of fixed size from one pool, found through a block table, as virtual memory finds its pages."""

import numpy as np
from jaxtyping import Float
from numpy.typing import DTypeLike

from kvlab.caches.blocks import CountedBlocks, Event, SequenceInBlocks
from kvlab.caches.protocol import New, Stored, expect_rows


class BlockPool(CountedBlocks):
    """Storage for keys and values in `n_blocks` blocks of `block_size` slots, with a count of holders for each block.

    A block with count 0 is free. Whoever takes one holds it; whoever shares it retains it; the last release frees it.
    The contents of a free block stay until it is handed out and written again.

    Args:
        n_blocks: blocks in all; allocated once.
        block_size: tokens in one block.
        n_kv_heads, head_dim: of one token's keys.
        dtype: of keys and values.
        events: a list that is given what the caches of this pool do, as kvlab.widgets.BlockTable reads it; None
            records nothing.

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
        dtype: DTypeLike = np.float64,
        events: list[Event] | None = None,
    ) -> None:
        super().__init__(n_blocks, block_size, n_kv_heads, head_dim, events)
        self.k: Float[np.ndarray, "n_blocks n_kv_heads block_size head_dim"] = np.zeros(self.shape, dtype)
        self.v: Float[np.ndarray, "n_blocks n_kv_heads block_size head_dim"] = np.zeros(self.shape, dtype)


class PagedCache(SequenceInBlocks):
    """The keys and values of one sequence, in blocks of a pool that other sequences use too.

    Token t is in slot t % block_size of block `block_table[t // block_size]`. A block is taken when the first token
    that needs it comes, so at most block_size - 1 slots are empty. An append writes the new rows and copies no old
    one, except those of a shared last block.

    Args:
        pool: where the blocks come from.
        name: of the sequence, in recorded events; None gives it a number.

    Attributes:
        block_table: the block of each logical block, first tokens first. To read; the cache changes it.

    Source: Kwon et al. 2023, section 4.

    >>> pool = BlockPool(n_blocks=8, block_size=4, n_kv_heads=2, head_dim=3)
    >>> cache = PagedCache(pool)
    >>> cache.append(np.ones((2, 5, 3)), np.ones((2, 5, 3)))
    >>> other = cache.fork()
    >>> other.append(np.zeros((2, 1, 3)), np.zeros((2, 1, 3)))
    >>> cache.block_table, other.block_table, len(other), other.gather()[0].shape
    ([0, 1], [0, 2], 6, (2, 6, 3))
    """

    def append(self, k_new: New, v_new: New) -> None:
        """Write the new rows behind those stored.

        Args:
            k_new, v_new: (n_kv_heads, n_new, head_dim), of the pool's dtype; n_new may be 0.

        Raises:
            ValueError: wrong shape or dtype.
            MemoryError: the pool has too few free blocks. In either case nothing has changed, here or in the pool.
        """
        pool = self.pool
        expect_rows(k_new, v_new, pool.n_kv_heads, pool.head_dim)
        if k_new.dtype != pool.k.dtype or v_new.dtype != pool.v.dtype:
            raise ValueError(
                f"pool holds {pool.k.dtype}, got {k_new.dtype} keys and {v_new.dtype} values: "
                "pass dtype= when the pool is made"
            )
        self._write(k_new, v_new)

    def gather(self) -> tuple[Stored, Stored]:
        """All rows in two new arrays (n_kv_heads, n_total, head_dim), oldest first. Copies every row at each call."""
        return self._in_order(self.pool.k), self._in_order(self.pool.v)

    def _in_order(self, blocks: np.ndarray) -> np.ndarray:
        """(n_blocks, n_kv_heads, block_size, head_dim) of the pool -> (n_kv_heads, n_total, head_dim) of this table."""
        n_blocks, n_kv_heads, size, head_dim = blocks.shape
        # One row for each block and head: a single take then writes the result in order, with no second copy.
        rows = np.array(self.block_table, dtype=np.intp) * n_kv_heads + np.arange(n_kv_heads)[:, None]
        taken = blocks.reshape(n_blocks * n_kv_heads, size, head_dim).take(rows, axis=0)
        return taken.reshape(n_kv_heads, len(self.block_table) * size, head_dim)[:, : self._length]
