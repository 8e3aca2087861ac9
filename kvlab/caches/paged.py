"""A cache in blocks of fixed size from one pool, found through a block table, as virtual memory finds its pages."""

from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import DTypeLike

from kvlab.caches.protocol import New, Stored, expect_rows
from kvlab.shapes import expect_count

Event = dict[str, Any]


class BlockPool:
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
        self.n_blocks = expect_count("n_blocks", n_blocks, 1)
        self.block_size = expect_count("block_size", block_size, 1)
        self.n_kv_heads = expect_count("n_kv_heads", n_kv_heads, 1)
        self.head_dim = expect_count("head_dim", head_dim, 1)
        shape = (n_blocks, n_kv_heads, block_size, head_dim)
        self.k: Float[np.ndarray, "n_blocks n_kv_heads block_size head_dim"] = np.zeros(shape, dtype)
        self.v: Float[np.ndarray, "n_blocks n_kv_heads block_size head_dim"] = np.zeros(shape, dtype)
        self.events = events
        self.n_named = 0  # sequences that were given a name by number
        self._counts = [0] * n_blocks
        self._free = list(range(n_blocks))[::-1]  # a stack: the lowest number first, then the one freed last

    def allocate(self) -> int:
        """Hand out a free block, with count 1.

        Raises:
            MemoryError: no block is free.
        """
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
    def block_bytes(self) -> int:
        """Bytes of one block, keys and values."""
        return self.n_bytes // self.n_blocks

    @property
    def n_bytes(self) -> int:
        """Bytes of the whole pool, in use or free."""
        return self.k.nbytes + self.v.nbytes

    def record(self, do: str, sequence: str, **fields: Any) -> None:
        """Add an event, where events are recorded."""
        if self.events is not None:
            self.events.append({"do": do, "sequence": sequence} | fields)

    def _used(self, what: str, block: int) -> int:
        number = expect_count("block", block)
        if number >= self.n_blocks:
            raise ValueError(f"{what}: the pool has blocks 0 to {self.n_blocks - 1}, got {number}")
        if self._counts[number] == 0:
            raise ValueError(f"{what}: block {number} is not in use")
        return number


class PagedCache:
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

    def __init__(self, pool: BlockPool, name: str | None = None) -> None:
        self.pool = pool
        self.block_table: list[int] = []
        self._length = 0
        if name is None:
            name = f"s{pool.n_named}"
            pool.n_named += 1
        self.name = name

    def append(self, k_new: New, v_new: New) -> None:
        """Write the new rows behind those stored.

        Args:
            k_new, v_new: (n_kv_heads, n_new, head_dim), of the pool's dtype; n_new may be 0.

        Raises:
            ValueError: wrong shape or dtype.
            MemoryError: the pool has too few free blocks. In either case nothing has changed, here or in the pool.
        """
        pool, size = self.pool, self.pool.block_size
        n_new = expect_rows(k_new, v_new, pool.n_kv_heads, pool.head_dim)
        if k_new.dtype != pool.k.dtype or v_new.dtype != pool.v.dtype:
            raise ValueError(
                f"pool holds {pool.k.dtype}, got {k_new.dtype} keys and {v_new.dtype} values: "
                "pass dtype= when the pool is made"
            )
        if n_new:
            self._reserve(n_new)
        done = 0
        while done < n_new:
            block, slot = self.block_table[self._length // size], self._length % size
            n = min(size - slot, n_new - done)
            pool.k[block, :, slot : slot + n] = k_new[:, done : done + n]
            pool.v[block, :, slot : slot + n] = v_new[:, done : done + n]
            self._length += n
            done += n
        if n_new:
            pool.record("write", self.name, n_tokens=n_new)

    def gather(self) -> tuple[Stored, Stored]:
        """All rows in two new arrays (n_kv_heads, n_total, head_dim), oldest first. Copies every row at each call."""
        return self._in_order(self.pool.k), self._in_order(self.pool.v)

    def fork(self, name: str | None = None) -> "PagedCache":
        """A second sequence with the same tokens. Shares every block; whoever writes a shared one first copies it."""
        other = PagedCache(self.pool, name)
        for block in self.block_table:
            self.pool.retain(block)
        other.block_table, other._length = list(self.block_table), self._length
        if self.block_table:
            self.pool.record("fork", self.name, to=other.name)
        return other

    def share(self, blocks: list[int]) -> None:
        """Begin with full blocks that hold this sequence's first tokens already; retains them.

        Raises:
            ValueError: the cache is not empty, or a block is not in use; nothing has changed then.
        """
        if self._length:
            raise ValueError(f"share: the cache holds {self._length} tokens, only an empty one can begin with blocks")
        for block in blocks:
            self.pool.count(block)
        for block in blocks:
            self.pool.retain(block)
            self.pool.record("share", self.name, block=block)
        self.block_table = list(blocks)
        self._length = len(blocks) * self.pool.block_size

    def free(self) -> None:
        """Let go of every block. The cache is empty then, as new; freeing an empty one does nothing."""
        if self.block_table:
            self.pool.record("release", self.name)
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
        return len(self.block_table) * self.pool.block_bytes

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
            pool.record("copy", self.name, index=len(self.block_table) - 1, block=new)
        for _ in range(n_more):
            self.block_table.append(pool.allocate())
            pool.record("allocate", self.name, block=self.block_table[-1])

    def _in_order(self, blocks: np.ndarray) -> np.ndarray:
        """(n_blocks, n_kv_heads, block_size, head_dim) of the pool -> (n_kv_heads, n_total, head_dim) of this table."""
        n_blocks, n_kv_heads, size, head_dim = blocks.shape
        # One row for each block and head: a single take then writes the result in order, with no second copy.
        rows = np.array(self.block_table, dtype=np.intp) * n_kv_heads + np.arange(n_kv_heads)[:, None]
        taken = blocks.reshape(n_blocks * n_kv_heads, size, head_dim).take(rows, axis=0)
        return taken.reshape(n_kv_heads, len(self.block_table) * size, head_dim)[:, : self._length]
