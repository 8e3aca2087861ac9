"""The two PyTorch caches that keep every token in one tensor each: grown by concatenation, or preallocated."""

import torch

from kvlab.shapes import expect, expect_count
from kvlab.torch_caches.protocol import AXES, Pair, Rows, expect_alike, expect_rows


def update_cache(past: Pair | None, k: Rows, v: Rows) -> Pair:
    """Append new rows to a (key, value) pair by concatenation along the token axis, axis 2.

    The pair that comes back is a new one and `past` stays as it was: every call copies all rows stored so far.

    Args:
        past: (k, v) of earlier tokens, each (batch, n_kv_heads, n_past, head_dim); None when there are none.
        k: (batch, n_kv_heads, n_new, head_dim) keys of the new tokens.
        v: their values, of the same shape.

    Returns:
        (k, v), each (batch, n_kv_heads, n_past + n_new, head_dim). With no past, the tensors given.

    Raises:
        ValueError: shapes, dtypes or devices that do not fit together.

    >>> pair = update_cache(None, torch.zeros(1, 2, 5, 8), torch.zeros(1, 2, 5, 8))
    >>> k, v = update_cache(pair, torch.zeros(1, 2, 1, 8), torch.zeros(1, 2, 1, 8))
    >>> tuple(k.shape), tuple(pair[0].shape)
    ((1, 2, 6, 8), (1, 2, 5, 8))
    """
    size = expect("k", k, AXES)
    expect("v", v, AXES, **size)
    expect_alike("v", v, k)
    if past is None:
        return k, v
    size["n_new"] = past[0].shape[2]
    for name, old in zip(("past keys", "past values"), past, strict=True):
        expect(name, old, AXES, **size)
        expect_alike("k", k, old)
    return torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)


class ConcatCache:
    """Keys and values in one tensor each, grown by concatenation.

    Exact, and needs no maximum length. n updates of one token copy n (n - 1) / 2 rows in all, and at each of them the
    old and the new tensor are alive together.

    >>> cache = ConcatCache(batch=1, n_kv_heads=2, head_dim=4)
    >>> k, v = cache.update(torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 3, 4))
    >>> len(cache), tuple(k.shape)
    (3, (1, 2, 3, 4))
    """

    def __init__(self, batch: int, n_kv_heads: int, head_dim: int) -> None:
        self.batch = expect_count("batch", batch, 1)
        self.n_kv_heads = expect_count("n_kv_heads", n_kv_heads, 1)
        self.head_dim = expect_count("head_dim", head_dim, 1)
        self._pair: Pair | None = None

    def update(self, k: Rows, v: Rows) -> Pair:
        """See TorchCache.update. Dtype and device follow the first update. What is returned never changes later.

        PyTorch has no read-only tensors: a caller who writes into what it is given writes into the cache.

        Raises:
            ValueError: k and v do not have this cache's shape, dtype or device; nothing is stored then.
        """
        sizes = {"batch": self.batch, "n_kv_heads": self.n_kv_heads, "head_dim": self.head_dim}
        expect_rows(k, v, None if self._pair is None else self._pair[0], **sizes)
        grown = update_cache(self._pair, k, v)
        # The first rows are the caller's own tensors: keep a copy, as every later update does anyway.
        self._pair = grown if self._pair is not None else (grown[0].clone(), grown[1].clone())
        return self._pair

    def __len__(self) -> int:
        return 0 if self._pair is None else self._pair[0].shape[2]

    def reset(self) -> None:
        self._pair = None

    @property
    def n_bytes(self) -> int:
        return 0 if self._pair is None else self._pair[0].nbytes + self._pair[1].nbytes


class StaticCache:
    """Keys and values in buffers of `max_len` slots, allocated once; a length says how many are filled.

    An update writes only the new rows. The price is max_len slots from the first token on, and that nothing but the
    filled part may ever be read. For inference only: writing in place breaks the graph that training needs.

    Args:
        batch, n_kv_heads, max_len, head_dim: the shape of each buffer.
        dtype: of the buffers, and of everything that is stored.
        device: where they live.

    >>> cache = StaticCache(batch=1, n_kv_heads=2, max_len=8, head_dim=4)
    >>> k, v = cache.update(torch.ones(1, 2, 3, 4), torch.ones(1, 2, 3, 4))
    >>> tuple(k.shape), cache.n_bytes
    ((1, 2, 3, 4), 512)
    """

    def __init__(
        self,
        batch: int,
        n_kv_heads: int,
        max_len: int,
        head_dim: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        self.batch = expect_count("batch", batch, 1)
        self.n_kv_heads = expect_count("n_kv_heads", n_kv_heads, 1)
        self.max_len = expect_count("max_len", max_len, 1)
        self.head_dim = expect_count("head_dim", head_dim, 1)
        self._k = torch.zeros(batch, n_kv_heads, max_len, head_dim, dtype=dtype, device=device)
        self._v = torch.zeros_like(self._k)
        self._length = 0

    def update(self, k: Rows, v: Rows) -> Pair:
        """See TorchCache.update. Returns views of the filled part, valid until the next update or reset.

        PyTorch has no read-only tensors: a caller who writes into a view writes into the cache.

        Raises:
            ValueError: another shape, dtype or device than the buffers', or no room; nothing is written then.
        """
        sizes = {"batch": self.batch, "n_kv_heads": self.n_kv_heads, "head_dim": self.head_dim}
        n_new = expect_rows(k, v, self._k, **sizes)
        end = self._length + n_new
        if end > self.max_len:
            raise ValueError(f"cache full: {self._length} of {self.max_len} slots are filled, {n_new} more do not fit")
        self._k[:, :, self._length : end] = k
        self._v[:, :, self._length : end] = v
        self._length = end
        return self._k[:, :, :end], self._v[:, :, :end]

    def __len__(self) -> int:
        return self._length

    def reset(self) -> None:
        self._length = 0

    @property
    def n_bytes(self) -> int:
        return self._k.nbytes + self._v.nbytes
