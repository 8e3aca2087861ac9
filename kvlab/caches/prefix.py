"""Prefix sharing: a full block is found again by a hash of its tokens and of all tokens before them."""

from collections import OrderedDict
from hashlib import sha256

import numpy as np
from jaxtyping import Int

from kvlab.caches.paged import BlockPool, PagedCache
from kvlab.shapes import expect, expect_count

Ids = Int[np.ndarray, "n"]


def block_keys(ids: Ids, block_size: int) -> list[bytes]:
    """A key for each full block of `ids`: SHA-256 of the block's tokens behind the key of the block before it.

    The parent's key belongs in it, since a key or value depends on every token before its own: the same tokens behind
    another prefix have other keys and values. For the same reason two models, or two adapters, need two indexes.

    Args:
        ids: (n,) token ids; a last block that is not full gets no key.
        block_size: tokens in a block.

    Raises:
        ValueError: ids are no row of integers, a block_size below 1.

    >>> first, second = block_keys(np.array([7, 8, 7, 8, 9]), block_size=2)
    >>> first == block_keys(np.array([7, 8]), 2)[0], first == second
    (True, False)
    """
    n = expect("ids", ids, ("n",))["n"]
    if not np.issubdtype(ids.dtype, np.integer):
        raise ValueError(f"ids: expected integers, got {ids.dtype}")
    size = expect_count("block_size", block_size, 1)
    keys, key = [], b""
    for start in range(0, n - size + 1, size):
        key = sha256(key + ids[start : start + size].astype("<i8").tobytes()).digest()
        keys.append(key)
    return keys


class PrefixIndex:
    """Full blocks of a pool by what they hold, so that a later sequence with the same first tokens shares them.

    The index is one more holder of each block it knows. So a block in the index is never handed out for other tokens,
    and outlives the sequence that wrote it, until `evict` lets it go.

    >>> pool = BlockPool(n_blocks=8, block_size=2, n_kv_heads=1, head_dim=4)
    >>> index, ids = PrefixIndex(pool), np.array([3, 1, 4, 1, 5])
    >>> first = index.start(ids)
    >>> first.append(np.ones((1, 5, 4)), np.ones((1, 5, 4)))
    >>> index.keep(ids, first)
    >>> second = index.start(np.array([3, 1, 4, 1]))
    >>> len(second), second.block_table, len(index)
    (2, [0], 2)
    """

    def __init__(self, pool: BlockPool) -> None:
        self.pool = pool
        self._blocks: OrderedDict[bytes, int] = OrderedDict()  # used longest ago first

    def start(self, ids: Ids, name: str | None = None) -> PagedCache:
        """A cache that begins with the blocks already stored for `ids`; `len` of it says how many tokens are saved.

        At least one token is left to run, even where all of them are stored: the logits that choose the next token
        come from the last token's query, and a cache holds no queries.
        """
        expect("ids", ids, ("n",))
        found = []
        for key in block_keys(ids[:-1], self.pool.block_size):
            if key not in self._blocks:
                break
            found.append(key)
        cache = PagedCache(self.pool, name)
        cache.share([self._blocks[key] for key in found])
        self._touch(found)
        return cache

    def keep(self, ids: Ids, cache: PagedCache) -> None:
        """Remember the full blocks of `cache`, whose tokens are `ids`. A block known already is not kept twice.

        Raises:
            ValueError: another number of ids than the cache holds tokens, another pool; nothing is kept then.
        """
        if cache.pool is not self.pool:
            raise ValueError("keep: the cache's blocks are of another pool than the index's")
        expect("ids", ids, ("n",), n=len(cache))
        keys = block_keys(ids, self.pool.block_size)
        for key, block in zip(keys, cache.block_table, strict=False):  # a last block may be part filled
            if key not in self._blocks:
                self.pool.retain(block)
                self._blocks[key] = block
                self.pool.record("share", "index", block=block)
        self._touch(keys)

    def evict(self, n_blocks: int) -> int:
        """Let go of up to n_blocks blocks that no sequence holds, used longest ago first; return how many."""
        idle = [key for key, block in self._blocks.items() if self.pool.count(block) == 1]
        gone = idle[: expect_count("n_blocks", n_blocks)]
        for key in gone:
            block = self._blocks.pop(key)
            self.pool.release(block)
            self.pool.record("drop", "index", block=block)
        return len(gone)

    def __len__(self) -> int:
        """Blocks that the index holds."""
        return len(self._blocks)

    def _touch(self, keys: list[bytes]) -> None:
        # The deepest block first: a block is of no use once the one before it is gone, so it has to go earlier.
        for key in reversed(keys):
            self._blocks.move_to_end(key)
