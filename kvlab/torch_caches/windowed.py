"""The PyTorch caches of sliding-window attention: a ring that evicts the oldest row, and one that keeps sinks too.

Two counters everywhere: `len(cache)` is the tokens each sequence has seen, `n_rows` is the rows still held.
"""

import torch
from jaxtyping import Int

from kvlab.shapes import expect_count
from kvlab.torch_caches.protocol import AnyRows, Rows, expect_rows

Answer = tuple[AnyRows, AnyRows, Int[torch.Tensor, "n_rows"]]


class RingCache:
    """The last `window` keys and values of each sequence, in as many slots, allocated once and reused in turn.

    `kvlab.caches.RingCache` with a batch axis. All sequences of the batch stand at the same position. An update copies
    at most window rows, whatever the length: the slots are not in time order, and what is handed out is.

    Args:
        batch, n_kv_heads, head_dim: shape of one row.
        window: tokens a query sees, itself included; also the slots.
        dtype, device: of the slots, and of everything that is stored.

    Raises:
        ValueError: a size below 1.

    >>> cache = RingCache(batch=1, n_kv_heads=2, head_dim=4, window=3)
    >>> k, v, positions = cache.update(torch.zeros(1, 2, 5, 4), torch.zeros(1, 2, 5, 4))
    >>> k, v, positions = cache.update(torch.zeros(1, 2, 2, 4), torch.zeros(1, 2, 2, 4))
    >>> positions.tolist(), len(cache), cache.n_rows
    ([3, 4, 5, 6], 7, 3)
    """

    n_sinks = 0

    def __init__(
        self,
        batch: int,
        n_kv_heads: int,
        head_dim: int,
        window: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        self.batch = expect_count("batch", batch, 1)
        self.n_kv_heads = expect_count("n_kv_heads", n_kv_heads, 1)
        self.head_dim = expect_count("head_dim", head_dim, 1)
        self.window = expect_count("window", window, 1)
        self._k = torch.zeros(batch, n_kv_heads, self.n_sinks + window, head_dim, dtype=dtype, device=device)
        self._v = torch.zeros_like(self._k)
        self._length = 0

    def update(self, k: Rows, v: Rows) -> Answer:
        """Store the new rows; return those that the new queries may need, and evict only then.

        Args:
            k, v: (batch, n_kv_heads, n_new, head_dim).

        Returns:
            (k, v, positions): sinks that have left the window, up to window - 1 rows before the chunk, the chunk;
            oldest first, copies. positions (n_rows,) int64 are absolute. `attendable` makes the mask of them.

        Raises:
            ValueError: another shape, dtype or device than the slots'; nothing is stored then.
        """
        n_new = expect_rows(k, v, self._k, batch=self.batch, n_kv_heads=self.n_kv_heads, head_dim=self.head_dim)
        n_past, n_total = self._length, self._length + n_new
        before, new = self._kept(n_past, self.window - 1), torch.arange(n_past, n_total, device=self._k.device)
        slots = self._slots(before)
        seen_k, seen_v = torch.cat([self._k[:, :, slots], k], dim=2), torch.cat([self._v[:, :, slots], v], dim=2)
        # Of a chunk longer than the window, the rows in its middle never get a slot.
        stay = self._kept(n_total, self.window, since=n_past)
        slots = self._slots(stay)
        self._k[:, :, slots] = k[:, :, stay - n_past]
        self._v[:, :, slots] = v[:, :, stay - n_past]
        self._length = n_total
        return seen_k, seen_v, torch.cat([before, new])

    def __len__(self) -> int:
        """Tokens seen: the position of the next one."""
        return self._length

    @property
    def n_rows(self) -> int:
        """Rows held now, at most window (and the sinks)."""
        return min(self._length, self.n_sinks + self.window)

    def reset(self) -> None:
        """Forget every token; the slots stay."""
        self._length = 0

    @property
    def n_bytes(self) -> int:
        """Bytes of all slots, filled or not."""
        return self._k.nbytes + self._v.nbytes

    def _kept(self, n_seen: int, n_last: int, since: int = 0) -> Int[torch.Tensor, "n_kept"]:
        """Positions from `since` on of the sinks and of the last n_last tokens, when n_seen have been seen."""
        first = max(n_seen - n_last, since)
        sinks = torch.arange(since, max(since, min(self.n_sinks, first)), device=self._k.device)
        return torch.cat([sinks, torch.arange(first, n_seen, device=self._k.device)])

    def _slots(self, positions: Int[torch.Tensor, "n"]) -> Int[torch.Tensor, "n"]:
        """Where tokens lie: the sinks in slots of their own, in front, all others around the ring."""
        ring = self.n_sinks + (positions - self.n_sinks) % self.window
        return torch.where(positions < self.n_sinks, positions, ring)


class SinkCache(RingCache):
    """A ring that never evicts the first n_sinks tokens: `kvlab.caches.SinkCache` with a batch axis.

    Args:
        batch, n_kv_heads, head_dim: shape of one row.
        n_sinks: first tokens kept for ever, besides the window.
        window: tokens a query sees, itself included, besides the sinks.
        dtype, device: of the slots, and of everything that is stored.

    Raises:
        ValueError: a size below 1, a negative n_sinks, more sinks than window.

    >>> cache = SinkCache(batch=1, n_kv_heads=2, head_dim=4, n_sinks=1, window=3)
    >>> k, v, positions = cache.update(torch.zeros(1, 2, 5, 4), torch.zeros(1, 2, 5, 4))
    >>> k, v, positions = cache.update(torch.zeros(1, 2, 2, 4), torch.zeros(1, 2, 2, 4))
    >>> positions.tolist(), len(cache), cache.n_rows
    ([0, 3, 4, 5, 6], 7, 4)
    """

    def __init__(
        self,
        batch: int,
        n_kv_heads: int,
        head_dim: int,
        n_sinks: int,
        window: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        self.n_sinks = expect_count("n_sinks", n_sinks)
        if n_sinks > expect_count("window", window, 1):
            raise ValueError(f"n_sinks: {n_sinks} sinks are more than the window of {window}, keep at most {window}")
        super().__init__(batch, n_kv_heads, head_dim, window, dtype, device)
