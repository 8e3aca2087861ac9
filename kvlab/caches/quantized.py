"""Keys and values in a few bits each: quantize and dequantize, and a cache whose newest rows stay exact."""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, UInt8

from kvlab.caches.protocol import New, Stored, expect_rows
from kvlab.shapes import expect_count

Axis = int | tuple[int, ...] | None


def quantize(
    x: Float[np.ndarray, "*shape"], n_bits: int, axis: Axis
) -> tuple[UInt8[np.ndarray, "*shape"], Float[np.ndarray, "*shared"], Float[np.ndarray, "*shared"]]:
    """Round x to 2**n_bits evenly spaced levels between the minimum and the maximum of each slice.

    scale = (max - min) / (2**n_bits - 1), zero = min, codes = round((x - zero) / scale): asymmetric quantization, as
    KIVI uses it for the cache (Liu et al. 2024, section 3). x is off by half a step, scale / 2, at most, and by the
    roundings of its own dtype (in float16 these show). A slice of equal numbers has scale 0 and comes back exactly.

    Args:
        x: floats of any shape, such as keys (n_kv_heads, n_tokens, head_dim).
        n_bits: 2 to 8.
        axis: what one scale is shared over. Of keys: 1 is per channel, 2 per token, None the whole tensor.

    Returns:
        (codes, scale, zero): codes uint8 of x's shape, one a byte, 0 to 2**n_bits - 1; scale and zero of x's dtype,
        with the shared axes kept as size 1.

    Raises:
        ValueError: n_bits outside 2 to 8, x not of floats, no such axis, an axis with nothing on it, numbers that are
            not finite, or a range that x's dtype cannot hold.

    >>> codes, scale, zero = quantize(np.array([[0.0, 1.0, 3.0], [5.0, 5.0, 5.0]]), n_bits=2, axis=1)
    >>> codes.tolist(), scale.tolist(), zero.tolist()
    ([[0, 1, 3], [0, 0, 0]], [[1.0], [0.0]], [[0.0], [5.0]])
    """
    n_levels = 2 ** expect_bits(n_bits)
    _expect_floats("x", x)
    axes = np.lib.array_utils.normalize_axis_tuple(range(x.ndim) if axis is None else axis, x.ndim)
    if any(x.shape[a] == 0 for a in axes):
        raise ValueError(f"quantize: x of shape {x.shape} has nothing along axis {axis} that could share a scale")
    zero, top = x.min(axis=axes, keepdims=True), x.max(axis=axes, keepdims=True)
    with np.errstate(over="ignore", invalid="ignore"):  # refused in the next line, in words
        scale = (top - zero) / (n_levels - 1)
    if not np.isfinite(scale).all():
        raise ValueError(f"quantize: x holds nan or inf, or numbers further apart than {x.dtype} can say")
    # A scale below the smallest normal number is coarse. Rounded down it leaves numbers above the highest level.
    coarse = (scale < np.finfo(x.dtype).smallest_normal) & (top > zero)
    scale = np.where(coarse, np.nextafter(scale, np.inf), scale)
    steps = (x - zero) / np.where(scale > 0, scale, 1)  # in a constant slice x - zero is 0, whatever divides it
    return np.rint(steps).astype(np.uint8), scale, zero


def dequantize(
    codes: UInt8[np.ndarray, "*shape"], scale: Float[np.ndarray, "*shared"], zero: Float[np.ndarray, "*shared"]
) -> Float[np.ndarray, "*shape"]:
    """codes * scale + zero, in the dtype of scale.

    Args:
        codes, scale, zero: as `quantize` returned them, or any that broadcast to the shape of codes.

    Raises:
        ValueError: codes that are not uint8, or scale and zero that do not fit them.

    >>> dequantize(np.array([[0, 1, 3]], np.uint8), np.array([[0.5]]), np.array([[-1.0]])).tolist()
    [[-1.0, -0.5, 0.5]]
    """
    if getattr(codes, "dtype", None) != np.uint8:
        raise ValueError(f"dequantize: codes must be uint8, got {_kind(codes)}")
    for name, shape in (("scale", np.shape(scale)), ("zero", np.shape(zero))):
        fits = len(shape) == codes.ndim and all(s in (1, c) for s, c in zip(shape, codes.shape, strict=True))
        if not fits:
            raise ValueError(f"dequantize: {name} of shape {shape} does not fit codes of shape {codes.shape}")
    return codes * scale + zero


def pack(codes: UInt8[np.ndarray, "*rows n"], n_bits: int) -> UInt8[np.ndarray, "*rows bits width"]:
    """Hold codes below 2**n_bits in n_bits bits each: eight codes in n_bits bytes, bit 0 of all of them first.

    >>> pack(np.array([1, 2, 3, 0, 1, 2, 3, 0], np.uint8), n_bits=2).shape
    (2, 1)
    """
    bits = codes[..., None, :] >> np.arange(expect_bits(n_bits), dtype=np.uint8)[:, None]
    return np.packbits(bits & 1, axis=-1)


def unpack(packed: UInt8[np.ndarray, "*rows bits width"], n: int) -> UInt8[np.ndarray, "*rows {n}"]:
    """The n codes a row that `pack` was given.

    >>> unpack(pack(np.array([1, 2, 3, 0, 1, 2, 3], np.uint8), n_bits=2), 7).tolist()
    [1, 2, 3, 0, 1, 2, 3]
    """
    bits = np.unpackbits(packed, axis=-1, count=n)
    codes = bits[..., 0, :].copy()
    for i in range(1, bits.shape[-2]):
        codes |= bits[..., i, :] << i
    return codes


class Group(NamedTuple):
    """`residual` rows quantized together: packed codes (n_kv_heads, n_bits, bytes), their scale and zero."""

    packed: np.ndarray
    scale: np.ndarray
    zero: np.ndarray


class QuantizedCache:
    """Rows in n_bits bits, all but the newest. Approximate: `error_bounds` says by how much at most.

    The newest rows stay exact until `residual` of them have gathered; then that group is quantized together, keys per
    channel (a scale for each channel, shared by the group's rows) and values per token (a scale for each row). What
    `append` returns shows a complete group quantized at once, so that the result depends on the rows alone and not on
    the chunks in which they came. After KIVI (Liu et al. 2024, section 3).

    Every append unpacks and dequantizes all groups: fewer bytes are kept, and more work is done on each read.

    Args:
        n_kv_heads, head_dim: of the rows.
        n_bits: 2 to 8.
        residual: rows a group, at least 1.

    >>> cache = QuantizedCache(n_kv_heads=1, head_dim=8, n_bits=4, residual=4)
    >>> rows = np.linspace(-1, 1, 40).reshape(1, 5, 8)
    >>> k, v = cache.append(rows, rows)
    >>> bool(np.array_equal(k[:, 4:], rows[:, 4:])), bool(np.abs(k - rows).max() <= cache.error_bounds()[0].max())
    (True, True)
    """

    def __init__(self, n_kv_heads: int, head_dim: int, n_bits: int, residual: int) -> None:
        self.n_kv_heads = expect_count("n_kv_heads", n_kv_heads, 1)
        self.head_dim = expect_count("head_dim", head_dim, 1)
        self.n_bits = expect_bits(n_bits)
        self.residual = expect_count("residual", residual, 1)
        self._k_groups: list[Group] = []
        self._v_groups: list[Group] = []
        self._k: np.ndarray | None = None  # rows not yet quantized, fewer than `residual`
        self._v: np.ndarray | None = None

    def append(self, k_new: New, v_new: New) -> tuple[Stored, Stored]:
        """See Cache.append; what comes back is what attention sees, new arrays that never change later.

        The dtype follows the first append. Returned arrays are read-only, as of every cache here.

        Raises:
            ValueError: k_new and v_new do not have this cache's shape, or are no finite floats; nothing is stored then.
        """
        expect_rows(k_new, v_new, self.n_kv_heads, self.head_dim)
        k, v = _extend("k_new", self._k, k_new), _extend("v_new", self._v, v_new)
        n_full = k.shape[1] // self.residual * self.residual
        starts = range(0, n_full, self.residual)
        k_groups = [self._quantize(k[:, at : at + self.residual], axis=1) for at in starts]
        v_groups = [self._quantize(v[:, at : at + self.residual], axis=2) for at in starts]
        self._k_groups += k_groups
        self._v_groups += v_groups
        self._k, self._v = k[:, n_full:].copy(), v[:, n_full:].copy()
        return self._read(self._k_groups, self._k), self._read(self._v_groups, self._v)

    def error_bounds(self) -> tuple[Stored, Stored]:
        """The largest error of each number of (k, v): half a step of its group's scale, 0 for a row still exact.

        To it come the roundings of the rows' own dtype, a few units in the last place of the slice's largest number.
        Empty before the first append.
        """
        shape = (self.n_kv_heads, self.residual, self.head_dim)
        bounds = []
        for groups, exact in ((self._k_groups, self._k), (self._v_groups, self._v)):
            exact = np.zeros((self.n_kv_heads, 0, self.head_dim)) if exact is None else exact
            parts = [np.broadcast_to(group.scale / 2, shape) for group in groups]
            bounds.append(np.concatenate([*parts, np.zeros_like(exact)], axis=1))
        return bounds[0], bounds[1]

    def __len__(self) -> int:
        return len(self._k_groups) * self.residual + (0 if self._k is None else self._k.shape[1])

    def reset(self) -> None:
        self._k_groups, self._v_groups = [], []
        self._k = self._v = None

    @property
    def n_bytes(self) -> int:
        """Packed codes at n_bits each (a group's filled up to whole bytes a head), their scales and zeros at the rows'
        own dtype, and the exact rows."""
        groups = sum(array.nbytes for group in self._k_groups + self._v_groups for array in group)
        return groups + sum(exact.nbytes for exact in (self._k, self._v) if exact is not None)

    def _quantize(self, rows: New, axis: int) -> Group:
        codes, scale, zero = quantize(rows, self.n_bits, axis)
        return Group(pack(codes.reshape(self.n_kv_heads, -1), self.n_bits), scale, zero)

    def _read(self, groups: list[Group], exact: np.ndarray) -> np.ndarray:
        rows = exact.copy()
        if groups:
            packed, scale, zero = (np.stack(arrays, axis=1) for arrays in zip(*groups, strict=True))
            codes = unpack(packed, self.residual * self.head_dim)
            codes = codes.reshape(self.n_kv_heads, len(groups), self.residual, self.head_dim)
            quantized = dequantize(codes, scale, zero).reshape(self.n_kv_heads, -1, self.head_dim)
            rows = np.concatenate([quantized, exact], axis=1)
        rows.flags.writeable = False
        return rows


def expect_bits(n_bits: int) -> int:
    """Return n_bits as an int if it is 2 to 8; else ValueError."""
    try:
        bits = expect_count("n_bits", n_bits, 2)
    except ValueError:
        bits = 0
    if bits not in range(2, 9):
        raise ValueError(f"n_bits: expected a whole number from 2 to 8, got {n_bits!r}")
    return bits


def _expect_floats(name: str, x: np.ndarray) -> None:
    if not isinstance(x, np.ndarray) or x.dtype.kind != "f":
        raise ValueError(f"{name}: expected floats, got {_kind(x)}")


def _kind(x: Any) -> str:
    """The dtype of an array, the type of anything else."""
    return str(getattr(x, "dtype", type(x).__name__))


def _extend(name: str, exact: np.ndarray | None, new: New) -> np.ndarray:
    """The rows not yet quantized with the new ones behind them; ValueError for numbers that are no finite floats."""
    _expect_floats(name, new)
    with np.errstate(over="ignore"):  # a float64 that a float16 cache cannot hold is refused below
        rows = new if exact is None else np.concatenate([exact, new.astype(exact.dtype)], axis=1)
    if not np.isfinite(rows).all():
        raise ValueError(f"{name}: expected finite numbers, got nan or inf: no scale spans them")
    return rows
