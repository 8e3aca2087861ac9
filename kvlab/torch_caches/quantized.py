"""Keys and values in a few bits each, in PyTorch: quantize and dequantize, and a cache whose newest rows stay exact."""

from typing import NamedTuple

import torch
from jaxtyping import Float, UInt8

from kvlab.shapes import expect_count
from kvlab.torch_caches.protocol import Pair, Rows, expect_rows

Axis = int | tuple[int, ...]


def quantize(
    x: Float[torch.Tensor, "*shape"], n_bits: int, axis: Axis
) -> tuple[UInt8[torch.Tensor, "*shape"], Float[torch.Tensor, "*shared"], Float[torch.Tensor, "*shared"]]:
    """Round x to 2**n_bits evenly spaced levels of each slice: `kvlab.caches.quantize` in PyTorch.

    scale = (max - min) / (2**n_bits - 1), zero = min, codes = round((x - zero) / scale). x is off by half a step,
    scale / 2, at most, and by the roundings of its own dtype. A slice of equal numbers comes back exactly.

    Args:
        x: floats of any shape, such as keys (batch, n_kv_heads, n_tokens, head_dim).
        n_bits: 2 to 8.
        axis: what one scale is shared over. Of keys: 2 is per channel, 3 per token.

    Returns:
        (codes, scale, zero): codes uint8 of x's shape, one a byte; scale and zero of x's dtype, with the shared axes
        kept as size 1.

    Raises:
        ValueError: n_bits outside 2 to 8, no such axis, an axis with nothing on it, numbers that are not finite, or a
            range that x's dtype cannot hold.

    >>> codes, scale, zero = quantize(torch.tensor([[0.0, 1.0, 3.0], [5.0, 5.0, 5.0]]), n_bits=2, axis=1)
    >>> codes.tolist(), scale.tolist(), zero.tolist()
    ([[0, 1, 3], [0, 0, 0]], [[1.0], [0.0]], [[0.0], [5.0]])
    """
    n_levels = 2 ** expect_bits(n_bits)
    axes = axis if isinstance(axis, tuple) else (axis,)
    for a in axes:
        if not -x.ndim <= a < x.ndim or x.shape[a] == 0:
            raise ValueError(f"quantize: x of shape {tuple(x.shape)} has nothing along axis {a} to share a scale")
    zero = x.amin(axes, keepdim=True)
    scale = (x.amax(axes, keepdim=True) - zero) / (n_levels - 1)
    if not scale.isfinite().all():
        raise ValueError(f"quantize: x holds nan or inf, or numbers further apart than {x.dtype} can say")
    steps = (x - zero) / scale.where(scale > 0, 1.0)  # in a constant slice x - zero is 0, whatever divides it
    # In 16 bits the quotient may round to one above the top, which uint8 would turn into 0 at 8 bits.
    codes = steps.round().clamp_max(n_levels - 1).to(torch.uint8)
    return codes, scale, zero


def dequantize(
    codes: UInt8[torch.Tensor, "*shape"],
    scale: Float[torch.Tensor, "*shared"],
    zero: Float[torch.Tensor, "*shared"],
) -> Float[torch.Tensor, "*shape"]:
    """codes * scale + zero, in the dtype of scale.

    Args:
        codes, scale, zero: as `quantize` returned them, or any that broadcast to the shape of codes.

    Raises:
        ValueError: codes that are not uint8, or scale and zero that do not fit them.

    >>> dequantize(torch.tensor([[0, 1, 3]], dtype=torch.uint8), torch.tensor([[0.5]]), torch.tensor([[-1.0]])).tolist()
    [[-1.0, -0.5, 0.5]]
    """
    if codes.dtype != torch.uint8:
        raise ValueError(f"dequantize: codes must be uint8, got {codes.dtype}")
    for name, shared in (("scale", scale), ("zero", zero)):
        sizes, shape = tuple(shared.shape), tuple(codes.shape)
        if len(sizes) != len(shape) or any(a not in (1, b) for a, b in zip(sizes, shape, strict=True)):
            raise ValueError(f"dequantize: {name} of shape {sizes} does not fit codes of shape {shape}")
    return (codes * scale).add_(zero)  # in place: a second tensor of this size costs as much as the sum


def pack(codes: UInt8[torch.Tensor, "*rows n"], n_bits: int) -> UInt8[torch.Tensor, "*rows bits width"]:
    """Hold codes below 2**n_bits in n_bits bits each: eight codes in n_bits bytes.

    Byte w of plane i holds bit i of the codes w, w + width, ..., w + 7 width: eight neighbours in one byte would make
    every shift a step of eight elements, which torch runs ten times slower on a CPU.

    >>> pack(torch.tensor([1, 2, 3, 0, 1, 2, 3, 0], dtype=torch.uint8), n_bits=2).shape
    torch.Size([2, 1])
    """
    codes = torch.nn.functional.pad(codes, (0, -codes.shape[-1] % 8))
    runs = codes.unflatten(-1, (8, codes.shape[-1] // 8))
    bits = (runs[..., None, :, :] >> _column(expect_bits(n_bits), codes)[:, None]) & 1  # (..., bits, 8, width)
    return (bits << _column(8, codes)).sum(-2, dtype=torch.uint8)


def unpack(packed: UInt8[torch.Tensor, "*rows bits width"], n: int) -> UInt8[torch.Tensor, "*rows {n}"]:
    """The n codes a row that `pack` was given.

    >>> unpack(pack(torch.tensor([1, 2, 3, 0, 1, 2, 3], dtype=torch.uint8), n_bits=2), 7).tolist()
    [1, 2, 3, 0, 1, 2, 3]
    """
    eighth = _column(8, packed)
    codes = (packed[..., None, 0, :] >> eighth) & 1  # (..., 8, width)
    for i in range(1, packed.shape[-2]):  # plane by plane: all at once would take n_bits times the memory
        codes |= ((packed[..., None, i, :] >> eighth) & 1) << i
    return codes.flatten(-2)[..., :n]


class _Store(NamedTuple):
    """One of keys and values: the rows not yet quantized, and n_groups groups of `residual` rows.

    exact: (batch, n_kv_heads, n_exact, head_dim); packed: (batch, n_kv_heads, n_groups, n_bits, bytes); scale, zero:
    (batch, n_kv_heads, n_groups, residual or 1, 1 or head_dim).
    """

    exact: torch.Tensor
    packed: torch.Tensor
    scale: torch.Tensor
    zero: torch.Tensor


class QuantizedCache:
    """Rows in n_bits bits, all but the newest: `kvlab.caches.QuantizedCache` with a batch axis. Approximate.

    The newest rows stay exact until `residual` of them have gathered; then that group is quantized together, keys per
    channel and values per token. Every number is off by half a step of its group's scale at most, `error_bounds`, and
    by the roundings of its dtype. After KIVI (Liu et al. 2024, section 3).

    Every update unpacks and dequantizes all groups: fewer bytes are kept, and more work is done on each read. Looking
    for nan and inf makes a GPU wait once an update.

    Args:
        batch, n_kv_heads, head_dim: of the rows.
        n_bits: 2 to 8.
        residual: rows a group, at least 1.

    >>> cache = QuantizedCache(batch=1, n_kv_heads=1, head_dim=8, n_bits=4, residual=4)
    >>> rows = torch.linspace(-1, 1, 40).reshape(1, 1, 5, 8)
    >>> k, v = cache.update(rows, rows)
    >>> torch.equal(k[:, :, 4:], rows[:, :, 4:]), bool((k - rows).abs().max() <= cache.error_bounds()[0].max())
    (True, True)
    """

    def __init__(self, batch: int, n_kv_heads: int, head_dim: int, n_bits: int, residual: int) -> None:
        self.batch = expect_count("batch", batch, 1)
        self.n_kv_heads = expect_count("n_kv_heads", n_kv_heads, 1)
        self.head_dim = expect_count("head_dim", head_dim, 1)
        self.n_bits = expect_bits(n_bits)
        self.residual = expect_count("residual", residual, 1)
        self._stores: tuple[_Store, _Store] | None = None

    def update(self, k: Rows, v: Rows) -> Pair:
        """See TorchCache.update; what comes back is what attention sees, new tensors that never change later.

        Dtype and device follow the first update.

        Raises:
            ValueError: k and v do not have this cache's shape, dtype or device, or hold nan or inf; nothing is stored
                then.
        """
        like = None if self._stores is None else self._stores[0].exact
        expect_rows(k, v, like, batch=self.batch, n_kv_heads=self.n_kv_heads, head_dim=self.head_dim)
        for name, rows in (("k", k), ("v", v)):
            if not rows.isfinite().all():
                raise ValueError(f"{name}: expected finite numbers, got nan or inf: no scale spans them")
        old_k, old_v = self._stores or (None, None)
        self._stores = self._extended(old_k, k, axis=3), self._extended(old_v, v, axis=4)
        return self._read(self._stores[0]), self._read(self._stores[1])

    def error_bounds(self) -> Pair:
        """The largest error of each number of (k, v): half a step of its group's scale, 0 for a row still exact.

        Raises:
            ValueError: nothing has been stored yet.
        """
        if self._stores is None:
            raise ValueError("error_bounds: the cache is empty")
        return self._bounds(self._stores[0]), self._bounds(self._stores[1])

    def __len__(self) -> int:
        if self._stores is None:
            return 0
        return self._stores[0].packed.shape[2] * self.residual + self._stores[0].exact.shape[2]

    def reset(self) -> None:
        self._stores = None

    @property
    def n_bytes(self) -> int:
        """Packed codes at n_bits each (a group's filled up to whole bytes a head), their scales and zeros, and the
        exact rows."""
        return sum(part.nbytes for store in self._stores or () for part in store)

    def _extended(self, old: _Store | None, new: Rows, axis: int) -> _Store:
        """`old` with the new rows behind; every complete group (batch, n_kv_heads, group, row, head_dim) quantized."""
        rows = new if old is None else torch.cat([old.exact, new], dim=2)
        n_groups = rows.shape[2] // self.residual
        n_full = n_groups * self.residual
        groups = rows[:, :, :n_full].unflatten(2, (n_groups, self.residual))
        codes, scale, zero = quantize(groups, self.n_bits, axis)
        store = _Store(rows[:, :, n_full:].clone(), pack(codes.flatten(-2), self.n_bits), scale, zero)
        if old is None:
            return store
        return _Store(store.exact, *(torch.cat(both, dim=2) for both in zip(old[1:], store[1:], strict=True)))

    def _read(self, store: _Store) -> torch.Tensor:
        codes = unpack(store.packed, self.residual * self.head_dim).unflatten(-1, (self.residual, self.head_dim))
        return torch.cat([dequantize(codes, store.scale, store.zero).flatten(2, 3), store.exact], dim=2)

    def _bounds(self, store: _Store) -> torch.Tensor:
        n_groups = store.scale.shape[2]
        half = (store.scale / 2).expand(self.batch, self.n_kv_heads, n_groups, self.residual, self.head_dim)
        return torch.cat([half.flatten(2, 3), torch.zeros_like(store.exact)], dim=2)


def expect_bits(n_bits: int) -> int:
    """Return n_bits as an int if it is 2 to 8; else ValueError."""
    if expect_count("n_bits", n_bits, 2) > 8:
        raise ValueError(f"n_bits: expected a whole number from 2 to 8, got {n_bits}")
    return int(n_bits)


def _column(n: int, like: torch.Tensor) -> UInt8[torch.Tensor, "{n} 1"]:
    """0, 1, ... n - 1, one below the other."""
    return torch.arange(n, dtype=torch.uint8, device=like.device)[:, None]
