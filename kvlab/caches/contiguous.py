"""The two caches that keep every token in one array each: grown by concatenation, or preallocated."""

import numpy as np
from numpy.typing import DTypeLike

from kvlab.caches.protocol import New, Stored, expect_rows
from kvlab.shapes import expect_count


class ConcatCache:
    """Keys and values in one array each, grown by concatenation.

    Exact, and needs no maximum length. Every append copies all rows stored so far: n appends of one token copy
    n (n - 1) / 2 rows in all.

    >>> cache = ConcatCache(n_kv_heads=2, head_dim=4)
    >>> k, v = cache.append(np.zeros((2, 3, 4)), np.zeros((2, 3, 4)))
    >>> len(cache), k.shape
    (3, (2, 3, 4))
    """

    def __init__(self, n_kv_heads: int, head_dim: int) -> None:
        self.n_kv_heads = expect_count("n_kv_heads", n_kv_heads, 1)
        self.head_dim = expect_count("head_dim", head_dim, 1)
        self._k: np.ndarray | None = None
        self._v: np.ndarray | None = None

    def append(self, k_new: New, v_new: New) -> tuple[Stored, Stored]:
        """See Cache.append. The dtype follows the first append. Returned arrays are read-only and never change later.

        Raises:
            ValueError: k_new and v_new do not have this cache's shape; nothing is stored then.
        """
        expect_rows(k_new, v_new, self.n_kv_heads, self.head_dim)
        if self._k is None or self._v is None:
            k, v = k_new.copy(), v_new.copy()
        else:
            k = np.concatenate([self._k, k_new.astype(self._k.dtype, copy=False)], axis=1)
            v = np.concatenate([self._v, v_new.astype(self._v.dtype, copy=False)], axis=1)
        k.flags.writeable = v.flags.writeable = False  # handed out: a caller's write must not reach the cache
        self._k, self._v = k, v
        return k, v

    def __len__(self) -> int:
        return 0 if self._k is None else self._k.shape[1]

    def reset(self) -> None:
        self._k = self._v = None

    @property
    def n_bytes(self) -> int:
        return 0 if self._k is None or self._v is None else self._k.nbytes + self._v.nbytes


class StaticCache:
    """Keys and values in buffers of `max_len` slots, allocated once; a length says how many are filled.

    An append writes only the new rows. The price is max_len slots from the first token on, and that nothing but the
    filled part may ever be read: an unwritten slot holds zeros, and a zero key scores 0, which is not "hidden".

    >>> cache = StaticCache(n_kv_heads=2, max_len=8, head_dim=4)
    >>> k, v = cache.append(np.ones((2, 3, 4)), np.ones((2, 3, 4)))
    >>> k.shape, cache.n_bytes
    ((2, 3, 4), 1024)
    """

    def __init__(self, n_kv_heads: int, max_len: int, head_dim: int, dtype: DTypeLike = np.float64) -> None:
        self.n_kv_heads = expect_count("n_kv_heads", n_kv_heads, 1)
        self.max_len = expect_count("max_len", max_len, 1)
        self.head_dim = expect_count("head_dim", head_dim, 1)
        self._k = np.zeros((n_kv_heads, max_len, head_dim), dtype)
        self._v = np.zeros((n_kv_heads, max_len, head_dim), dtype)
        self._length = 0

    def append(self, k_new: New, v_new: New) -> tuple[Stored, Stored]:
        """See Cache.append. Returns read-only views of the filled part, which a reset followed by appends overwrites.

        Raises:
            ValueError: wrong shape, another dtype than the buffer's, or no room; nothing is stored then.
        """
        n_new = expect_rows(k_new, v_new, self.n_kv_heads, self.head_dim)
        end = self._length + n_new
        if end > self.max_len:
            raise ValueError(f"cache full: {self._length} of {self.max_len} slots are filled, {n_new} more do not fit")
        if k_new.dtype != self._k.dtype or v_new.dtype != self._v.dtype:
            raise ValueError(
                f"cache holds {self._k.dtype}, got {k_new.dtype} keys and {v_new.dtype} values: "
                "pass dtype= when the cache is made"
            )
        self._k[:, self._length : end] = k_new
        self._v[:, self._length : end] = v_new
        self._length = end
        k, v = self._k[:, :end], self._v[:, :end]
        k.flags.writeable = v.flags.writeable = False
        return k, v

    def __len__(self) -> int:
        return self._length

    def reset(self) -> None:
        self._length = 0

    @property
    def n_bytes(self) -> int:
        return self._k.nbytes + self._v.nbytes
