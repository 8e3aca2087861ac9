"""The caches of sliding-window attention: a ring that evicts the oldest row, and one that keeps the first tokens too.

Two counters everywhere: `len(cache)` is the tokens this sequence has seen, `n_rows` is the rows still held.
"""

import numpy as np
from jaxtyping import Float, Int

from kvlab.caches.protocol import New, expect_rows
from kvlab.shapes import expect_count

Rows = Float[np.ndarray, "n_kv_heads n_rows head_dim"]
Answer = tuple[Rows, Rows, Int[np.ndarray, "n_rows"]]


class RingCache:
    """The last `window` keys and values of a sequence, in as many slots, reused in turn.

    Token p lies in slot p % window, so the slots are not in time order; `append` hands the rows out oldest first.
    A window of W means that a query sees itself and the W - 1 tokens before it, so a chunk's first query still needs
    rows that its last query does not: rows are evicted after the chunk has attended, never before.

    Args:
        n_kv_heads, head_dim: shape of one row.
        window: tokens a query sees, itself included; also the slots.

    Raises:
        ValueError: a size below 1.

    >>> cache = RingCache(n_kv_heads=2, head_dim=4, window=3)
    >>> k, v, positions = cache.append(np.zeros((2, 5, 4)), np.zeros((2, 5, 4)))
    >>> k, v, positions = cache.append(np.zeros((2, 2, 4)), np.zeros((2, 2, 4)))
    >>> positions.tolist(), len(cache), cache.n_rows
    ([3, 4, 5, 6], 7, 3)
    """

    n_sinks = 0

    def __init__(self, n_kv_heads: int, head_dim: int, window: int) -> None:
        self.n_kv_heads = expect_count("n_kv_heads", n_kv_heads, 1)
        self.head_dim = expect_count("head_dim", head_dim, 1)
        self.window = expect_count("window", window, 1)
        self._k: np.ndarray | None = None
        self._v: np.ndarray | None = None
        self._length = 0

    def append(self, k_new: New, v_new: New) -> Answer:
        """Store the new rows; return those that the new queries may need, and evict only then.

        Args:
            k_new, v_new: (n_kv_heads, n_new, head_dim); the first append's dtypes are those of the storage.

        Returns:
            (k, v, positions): sinks that have left the window, up to window - 1 rows before the chunk, the chunk;
            oldest first, copies. positions (n_rows,) are absolute: 0 is the sequence's first token. Which of the rows
            each query may see, `kvlab.masks.visible` says.

        Raises:
            ValueError: k_new and v_new do not have this cache's shape; nothing is stored then.
        """
        n_new = expect_rows(k_new, v_new, self.n_kv_heads, self.head_dim)
        if self._k is None or self._v is None:
            n_slots = self.n_sinks + self.window
            self._k = np.zeros((self.n_kv_heads, n_slots, self.head_dim), k_new.dtype)
            self._v = np.zeros((self.n_kv_heads, n_slots, self.head_dim), v_new.dtype)
        n_past, n_total = self._length, self._length + n_new
        before, new = self._kept(n_past, self.window - 1), np.arange(n_past, n_total)
        slots = self._slots(before)
        k = np.concatenate([self._k[:, slots], k_new.astype(self._k.dtype, copy=False)], axis=1)
        v = np.concatenate([self._v[:, slots], v_new.astype(self._v.dtype, copy=False)], axis=1)
        # Of a chunk longer than the window, the rows in its middle never get a slot.
        stay = new[(new < self.n_sinks) | (new >= n_total - self.window)]
        self._k[:, self._slots(stay)] = k_new[:, stay - n_past]
        self._v[:, self._slots(stay)] = v_new[:, stay - n_past]
        self._length = n_total
        return k, v, np.concatenate([before, new])

    def __len__(self) -> int:
        """Tokens seen: the position of the next one."""
        return self._length

    @property
    def n_rows(self) -> int:
        """Rows held now, at most window (and the sinks)."""
        return min(self._length, self.n_sinks + self.window)

    def reset(self) -> None:
        """Forget every token; the next append sets the dtypes anew."""
        self._k = self._v = None
        self._length = 0

    @property
    def n_bytes(self) -> int:
        """Bytes of all slots, filled or not; 0 before the first append."""
        return 0 if self._k is None or self._v is None else self._k.nbytes + self._v.nbytes

    def _kept(self, n_seen: int, n_last: int) -> Int[np.ndarray, "n_kept"]:
        """Positions of the sinks and of the last n_last tokens, when n_seen have been seen."""
        first = max(n_seen - n_last, 0)
        return np.concatenate([np.arange(min(self.n_sinks, first)), np.arange(first, n_seen)])

    def _slots(self, positions: Int[np.ndarray, "n"]) -> Int[np.ndarray, "n"]:
        """Where tokens lie: the sinks in slots of their own, in front, all others around the ring."""
        ring = self.n_sinks + (positions - self.n_sinks) % self.window
        return np.where(positions < self.n_sinks, positions, ring)


class SinkCache(RingCache):
    """A ring that never evicts the first n_sinks tokens: attention sinks. Xiao et al. 2023 (StreamingLLM).

    Keys are kept as they came: rotated keys keep the angle of their absolute position. The paper renumbers the rows
    held instead, 0, 1, 2 and so on; then keys must be stored before rotation and turned at each read.

    Args:
        n_kv_heads, head_dim: shape of one row.
        n_sinks: first tokens kept for ever, besides the window.
        window: tokens a query sees, itself included, besides the sinks.

    Raises:
        ValueError: a size below 1, a negative n_sinks, more sinks than window.

    >>> cache = SinkCache(n_kv_heads=2, head_dim=4, n_sinks=1, window=3)
    >>> k, v, positions = cache.append(np.zeros((2, 5, 4)), np.zeros((2, 5, 4)))
    >>> k, v, positions = cache.append(np.zeros((2, 2, 4)), np.zeros((2, 2, 4)))
    >>> positions.tolist(), len(cache), cache.n_rows
    ([0, 3, 4, 5, 6], 7, 4)
    """

    def __init__(self, n_kv_heads: int, head_dim: int, n_sinks: int, window: int) -> None:
        super().__init__(n_kv_heads, head_dim, window)
        self.n_sinks = expect_count("n_sinks", n_sinks)
        if n_sinks > window:
            raise ValueError(f"n_sinks: {n_sinks} sinks are more than the window of {window}, keep at most {window}")
