"""The bookkeeping of paged caches, whichever library holds the numbers: who holds a block, and a sequence's table."""

from typing import Any, TypeVar

from kvlab.shapes import expect_count

Event = dict[str, Any]
S = TypeVar("S", bound="SequenceInBlocks")


class CountedBlocks:
    """The blocks of a pool with a count of holders for each; a block with count 0 is free.

    A pool adds `k` and `v`, each (n_blocks, n_kv_heads, block_size, head_dim).
    """

    k: Any
    v: Any

    def __init__(
        self, n_blocks: int, block_size: int, n_kv_heads: int, head_dim: int, events: list[Event] | None = None
    ) -> None:
        self.n_blocks = expect_count("n_blocks", n_blocks, 1)
        self.block_size = expect_count("block_size", block_size, 1)
        self.n_kv_heads = expect_count("n_kv_heads", n_kv_heads, 1)
        self.head_dim = expect_count("head_dim", head_dim, 1)
        self.events = events
        self.n_named = 0  # sequences that were given a name by number
        self._counts = [0] * n_blocks
        self._free = list(range(n_blocks))[::-1]  # a stack: the lowest number first, then the one freed last

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Of k and of v."""
        return self.n_blocks, self.n_kv_heads, self.block_size, self.head_dim

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


class SequenceInBlocks:
    """One sequence's block table over a pool, and its length; a cache adds how rows come in and go out.

    Token t is in slot t % block_size of block `block_table[t // block_size]`.
    """

    def __init__(self, pool: Any, name: str | None = None) -> None:
        self.pool = pool
        self.block_table: list[int] = []
        self._length = 0
        if name is None:
            name = f"s{pool.n_named}"
            pool.n_named += 1
        self.name = name

    def _write(self, k: Any, v: Any) -> None:
        """Put rows (n_kv_heads, n_new, head_dim) into the next slots, or raise MemoryError and change nothing."""
        pool, size, n_new = self.pool, self.pool.block_size, k.shape[1]
        if n_new == 0:
            return
        self._reserve(n_new)
        done = 0
        while done < n_new:
            block, slot = self.block_table[self._length // size], self._length % size
            n = min(size - slot, n_new - done)
            pool.k[block, :, slot : slot + n] = k[:, done : done + n]
            pool.v[block, :, slot : slot + n] = v[:, done : done + n]
            self._length += n
            done += n
        pool.record("write", self.name, n_tokens=n_new)

    def fork(self: S, name: str | None = None) -> S:
        """A second sequence with the same tokens. Shares every block; whoever writes a shared one first copies it."""
        other = type(self)(self.pool) if name is None else type(self)(self.pool, name)
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
