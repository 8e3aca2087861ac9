# %% [markdown]
# # 10 Exercises: a cache in blocks
#
# A pool of blocks that know how many hold them, and a sequence's cache that lies in such blocks.
#
# Lesson: [10 The cache in blocks](../notebooks/10_paged_cache.ipynb).

# %%
import numpy as np

from kvlab.checks import check, hint, progress

# %% [markdown]
# ## 1. BlockPool
#
# {card BlockPool}
#
# - `k` and `v` are two arrays of float64; what stands in a block that nobody wrote does not matter.
# - `allocate()` hands out the id of a block that nobody holds, a number from 0 to `n_blocks - 1`; its count is 1 then.
#   Which of the free ones it is does not matter. With none free it raises `MemoryError`.
# - `retain(id)` adds a holder, `release(id)` takes one away. With the last one the block is free again.
#   Both raise `ValueError` for an id that is not in use: free, released already, or no block of the pool.
# - `count(id)` is the number of holders of a block in use; `n_free`, read without brackets, that of the free blocks.


# %%
class BlockPool:
    """Blocks of slots for keys and values, with a count of holders for each."""

    def __init__(self, n_blocks, block_size, n_kv_heads, head_dim):
        ### BEGIN SOLUTION
        self.k = np.zeros((n_blocks, n_kv_heads, block_size, head_dim))
        self.v = np.zeros((n_blocks, n_kv_heads, block_size, head_dim))
        self.counts = [0] * n_blocks
        self.free = list(range(n_blocks))
        ### END SOLUTION

    def allocate(self):
        """Hand out a free block with count 1; MemoryError when there is none."""
        ### BEGIN SOLUTION
        if not self.free:
            raise MemoryError(f"all {len(self.counts)} blocks are in use")
        block = self.free.pop()
        self.counts[block] = 1
        return block
        ### END SOLUTION

    def retain(self, block):
        """One more holder; ValueError when the block is not in use."""
        ### BEGIN SOLUTION
        self._expect_in_use(block)
        self.counts[block] += 1
        ### END SOLUTION

    def release(self, block):
        """One holder less; the last one's release frees the block; ValueError when it is not in use."""
        ### BEGIN SOLUTION
        self._expect_in_use(block)
        self.counts[block] -= 1
        if self.counts[block] == 0:
            self.free.append(block)
        ### END SOLUTION

    def count(self, block):
        """How many hold a block in use."""
        ### BEGIN SOLUTION
        return self.counts[block]
        ### END SOLUTION

    @property
    def n_free(self):
        """Blocks that nobody holds."""
        ### BEGIN SOLUTION
        return len(self.free)

    def _expect_in_use(self, block):
        if not 0 <= block < len(self.counts) or self.counts[block] == 0:
            raise ValueError(f"block {block} is not in use")
        ### END SOLUTION


# %%
check(BlockPool)

# %% [markdown]
# ## 2. PagedCache
#
# {card PagedCache}
#
# The check hands your cache the course's own `BlockPool`. It has all that yours has, and `block_size` besides
# (for the example at the end, which puts your two classes together, yours needs it too if your cache asks for it).
# Token t of a sequence lies in slot `t % block_size` of block `block_table[t // block_size]`.
#
# - `append` writes the new rows into the pool's blocks and returns `None`. It takes a block when the first token needs
#   it, not earlier, and it reads no old rows. `n_new` may be 0: nothing changes then.
# - An append for which the pool has too few free blocks raises `MemoryError` and changes nothing: not this cache, not
#   the pool. One retry later must find everything as it was.
# - `gather()` returns copies of all rows, oldest first; with nothing stored, `(n_kv_heads, 0, head_dim)`.
# - `fork()` returns a second sequence with the same tokens. It shares every block and copies none. Whoever of the two
#   writes into a shared block first copies that one block; a full block is never copied, nor one that only one holds.
# - `free()` lets go of every block and leaves the cache empty, ready for another sequence.
# - `block_table` is the list of block ids in the sequence's order; `len(cache)` is the number of tokens.


# %%
class PagedCache:
    """The keys and values of one sequence, in blocks of a pool that others use too."""

    def __init__(self, pool):
        ### BEGIN SOLUTION
        self.pool = pool
        self.size = pool.k.shape[2]
        self.block_table = []
        self.n_tokens = 0
        ### END SOLUTION

    def append(self, k_new, v_new):
        """Write k_new and v_new, each (n_kv_heads, n_new, head_dim), behind the rows stored."""
        ### BEGIN SOLUTION
        n_new = k_new.shape[1]
        if n_new == 0:
            return
        self._reserve(n_new)
        for i in range(n_new):
            block, slot = self.block_table[self.n_tokens // self.size], self.n_tokens % self.size
            self.pool.k[block, :, slot] = k_new[:, i]
            self.pool.v[block, :, slot] = v_new[:, i]
            self.n_tokens += 1

    def _reserve(self, n_new):
        more = -(-(self.n_tokens + n_new) // self.size) - len(self.block_table)
        shared = self.n_tokens % self.size > 0 and self.pool.count(self.block_table[-1]) > 1
        if more + shared > self.pool.n_free:
            raise MemoryError(f"{more + shared} blocks are needed, {self.pool.n_free} are free")
        if shared:
            old, new = self.block_table[-1], self.pool.allocate()
            self.pool.k[new] = self.pool.k[old]
            self.pool.v[new] = self.pool.v[old]
            self.pool.release(old)
            self.block_table[-1] = new
        for _ in range(more):
            self.block_table.append(self.pool.allocate())
        ### END SOLUTION

    def gather(self):
        """All (k, v), each (n_kv_heads, n_total, head_dim), oldest first."""
        ### BEGIN SOLUTION
        return self._in_order(self.pool.k), self._in_order(self.pool.v)

    def _in_order(self, blocks):
        _, n_kv_heads, size, head_dim = blocks.shape
        own = blocks[self.block_table].transpose(1, 0, 2, 3)
        return own.reshape(n_kv_heads, len(self.block_table) * size, head_dim)[:, : self.n_tokens]
        ### END SOLUTION

    def fork(self):
        """A second sequence with the same tokens, in the same blocks."""
        ### BEGIN SOLUTION
        other = PagedCache(self.pool)
        for block in self.block_table:
            self.pool.retain(block)
        other.block_table = list(self.block_table)
        other.n_tokens = self.n_tokens
        return other
        ### END SOLUTION

    def free(self):
        """Let go of every block."""
        ### BEGIN SOLUTION
        for block in self.block_table:
            self.pool.release(block)
        self.block_table = []
        self.n_tokens = 0
        ### END SOLUTION

    def __len__(self):
        """The number of tokens stored."""
        ### BEGIN SOLUTION
        return self.n_tokens
        ### END SOLUTION


# %%
check(PagedCache)

# %% [markdown]
# ## Try it
#
# Your own pool and cache together: six tokens, a fork, and one more token for each of the two.

# %%
try:
    pool = BlockPool(n_blocks=6, block_size=4, n_kv_heads=1, head_dim=2)
    first = PagedCache(pool)
    first.append(np.ones((1, 6, 2)), np.ones((1, 6, 2)))
    second = first.fork()
    for cache in (first, second):
        cache.append(np.zeros((1, 1, 2)), np.zeros((1, 1, 2)))
    print("tables:", first.block_table, second.block_table, " free blocks:", pool.n_free)
except NotImplementedError as still_to_do:
    print(still_to_do)

# %% [markdown]
# ## Hints and progress

# %%
hint("PagedCache")

# %% tags=["exercise-only"]
progress()
