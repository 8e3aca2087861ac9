"""Checks for lesson 11: quantizing, reading back, and a cache that does both as it grows."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kvlab import caches
from kvlab.checks.model import Exercise, Malformed, Mistake, Observation, Probe, Raised, Stage, call, observe, pair

Triple = tuple[Any, Any, Any]


def _numbers(*shape: int, dtype: Any = np.float64) -> np.ndarray:
    """Random numbers around 1.5, so that a zero point left out shows, and no two of equal size."""
    return (np.random.default_rng(sum(shape)).standard_normal(shape) + 1.5).astype(dtype)


def _triple(value: Any) -> Triple:
    if isinstance(value, tuple | list) and len(value) == 3:
        return value[0], value[1], value[2]
    got = "None (is a return missing?)" if value is None else type(value).__name__
    got += f" of {len(value)}" if isinstance(value, tuple | list) else ""
    raise Malformed(f"quantize: expected (codes, scale, zero), got {got}")


def _read_back(codes: Any, scale: Any, zero: Any) -> Any:
    """codes * scale + zero by our own arithmetic, or in words why there is none."""
    arrays = [observe(a) for a in (codes, scale, zero)]
    if not all(isinstance(a, np.ndarray) and a.dtype.kind in "iuf" for a in arrays):
        return "codes, scale and zero are not arrays of numbers"
    try:
        return arrays[0] * arrays[1] + arrays[2]
    except ValueError as error:
        return f"no product: {error}"


def _quantized(describe: str, x: np.ndarray, n_bits: int, axis: Any, codes_first: bool = True) -> Probe:
    def run(submission: Callable[..., Any]) -> Observation:
        given = x.copy()
        codes, scale, zero = _triple(submission(given, n_bits, axis))
        seen = {"the codes": observe(codes), "scale": observe(scale), "zero": observe(zero)}
        back = {"codes * scale + zero": _read_back(codes, scale, zero)}
        return (seen | back if codes_first else back | seen) | {
            "the dtype of the codes": str(getattr(observe(codes), "dtype", type(codes).__name__)),
            "the input afterwards": "unchanged" if np.array_equal(given, x) else "changed",
        }

    return Probe(describe, run, 1e-9 if x.dtype == np.float64 else 1e-4)


def _quantize_normal(
    shape: tuple[int, ...], n_bits: int, axis: Any, dtype: Any = np.float64, codes_first: bool = True
) -> Probe:
    kind = "" if dtype is np.float64 else f" {np.dtype(dtype)}"
    describe = f"quantize(x, {n_bits}, {axis}) for x{kind} of shape {shape}"
    return _quantized(describe, _numbers(*shape, dtype=dtype), n_bits, axis, codes_first)


def _constant(x: np.ndarray, axis: int, describe: str) -> Probe:
    def run(submission: Callable[..., Any]) -> Observation:
        with warnings.catch_warnings(record=True) as said, np.errstate(invalid="warn"):
            warnings.simplefilter("always")
            codes, scale, zero = _triple(submission(x.copy(), 4, axis))
        back = _read_back(codes, scale, zero)
        flat = np.ptp(x, axis=axis) == 0
        exact = (
            isinstance(back, np.ndarray)
            and back.shape == x.shape
            and np.array_equal(np.moveaxis(back, axis, -1)[flat], np.moveaxis(x, axis, -1)[flat])
        )
        # What nan becomes as an integer differs between machines; on most it is 0 and looks right.
        from_nan = any("cast" in str(warning.message) for warning in said)
        return {
            "codes * scale + zero": back,
            "the constant slices come back exactly": exact,
            "codes were made of nan": from_nan,
        }

    return Probe(describe, run)


def _refuses(n_bits: int) -> Probe:
    def run(submission: Callable[..., Any]) -> Observation:
        try:
            submission(_numbers(2, 3), n_bits, 1)
        except ValueError:
            return {"what happens": Raised(("ValueError",))}
        return {"what happens": "an answer"}

    return Probe(f"quantize(x, {n_bits}, 1)", run)


def _quantizer(
    levels: Callable[[int], int] = lambda n_bits: 2**n_bits - 1,
    rounded: Callable[[np.ndarray], np.ndarray] = np.rint,
    clipped: bool = True,
    axes: Callable[[Any, int], Any] = lambda axis, ndim: axis,
    keepdims: bool = True,
    bits: Callable[[int], int] = lambda n_bits: n_bits,
    zero_of: Callable[[np.ndarray, np.ndarray], np.ndarray] = lambda low, scale: low,
    checked: bool = True,
    dtype: Any = np.uint8,
    guarded: bool = True,
) -> Callable[..., Any]:
    """A right `quantize`, spoiled where an argument says so."""

    def wrong(x: np.ndarray, n_bits: int, axis: Any) -> Any:
        if checked and n_bits not in range(2, 9):
            raise ValueError("n_bits")
        n_bits, over = bits(n_bits), axes(axis, x.ndim)
        low, high = x.min(axis=over, keepdims=True), x.max(axis=over, keepdims=True)
        scale = (high - low) / levels(n_bits)
        zero = zero_of(low, scale)
        codes = rounded((x - low) / (np.where(scale > 0, scale, 1) if guarded else scale))
        if clipped:
            codes = np.clip(codes, 0, 2**n_bits - 1)
        if not keepdims:
            scale, zero = (np.squeeze(a, axis=over) for a in (scale, zero))
        return codes.astype(dtype), scale, zero

    return wrong


def _wrapping(codes: np.ndarray) -> np.ndarray:
    """What uint8 makes of codes beyond 255: the remainder."""
    return np.rint(codes) % 256


def _symmetric(x: np.ndarray, n_bits: int, axis: Any) -> Any:
    if n_bits not in range(2, 9):
        raise ValueError("n_bits")
    half = 2 ** (n_bits - 1) - 1
    scale = np.abs(x).max(axis=axis, keepdims=True) / half
    codes = np.rint(x / np.where(scale > 0, scale, 1)) + half
    return codes.astype(np.uint8), scale, -half * scale


def _zero_never_subtracted(x: np.ndarray, n_bits: int, axis: Any) -> Any:
    if n_bits not in range(2, 9):
        raise ValueError("n_bits")
    low = x.min(axis=axis, keepdims=True)
    scale = (x.max(axis=axis, keepdims=True) - low) / (2**n_bits - 1)
    return np.clip(np.rint(x / np.where(scale > 0, scale, 1)), 0, 2**n_bits - 1).astype(np.uint8), scale, low


def _in_place(x: np.ndarray, n_bits: int, axis: Any) -> Any:
    answer = caches.quantize(x.copy(), n_bits, axis)
    x -= answer[2]
    return answer


def _kept(axis: Any, ndim: int) -> tuple[int, ...]:
    """All axes but those named."""
    named = {a % ndim for a in (axis if isinstance(axis, tuple) else (axis,))}
    return tuple(a for a in range(ndim) if a not in named)


def _exchanged(axis: Any, ndim: int) -> Any:
    return {1: 2, 2: 1, -1: 1}.get(axis, axis) if ndim == 3 and not isinstance(axis, tuple) else axis


QUANTIZE = Exercise(
    id="quantize",
    reference=caches.quantize,
    stages=[
        Stage(
            "numbers on the levels get their level's code",
            [_quantized("quantize(np.array([2.0, 3.0, 5.0]), 2, 0)", np.array([2.0, 3.0, 5.0]), 2, 0)],
        ),
        Stage(
            "each number gets the nearest level",
            [
                _quantized("quantize(np.array([0.0, 0.9, 2.4, 3.0]), 2, 0)", np.array([0.0, 0.9, 2.4, 3.0]), 2, 0),
                _quantize_normal((9,), 4, 0),
            ],
        ),
        Stage(
            "one scale for each slice along axis",
            [_quantize_normal((2, 4, 3), 4, 1), _quantize_normal((2, 4, 3), 4, 2)],
        ),
        Stage(
            "axis counted from the end, or several axes",
            [_quantize_normal((2, 4, 3), 4, -1), _quantize_normal((2, 4, 3), 4, (0, 1, 2))],
        ),
        Stage("other numbers of bits", [_quantize_normal((3, 50), 8, 1), _quantize_normal((3, 5), 3, 0)]),
        Stage("numbers of any size", [_quantized("quantize(1e-6 * x, 4, 1)", 1e-6 * _numbers(2, 7), 4, 1)]),
        Stage(
            "a constant slice comes back exactly",
            [
                _constant(np.array([[0.1, 0.1, 0.1]]), 1, "quantize(np.array([[0.1, 0.1, 0.1]]), 4, 1)"),
                _constant(
                    np.array([[0.3, 1.0], [0.3, 2.0], [0.3, 4.5]]),
                    0,
                    "quantize(x, 4, 0) where one column of two is 0.3, 0.3, 0.3",
                ),
            ],
        ),
        Stage(
            "float32, and no rows at all",
            [_quantize_normal((2, 5, 3), 4, 1, np.float32), _quantize_normal((2, 0, 3), 4, 2)],
        ),
        Stage("bits outside 2 to 8 are refused", [_refuses(1), _refuses(9)]),
    ],
    mistakes=[
        Mistake(
            "rounded_down",
            "Codes are cut off where they should be rounded: .astype drops what stands behind the point, so that a "
            "number may be a whole step away from what it is read back as.",
            "Which whole number is nearest to 2.9, and which one does astype make of it?",
            _quantizer(rounded=np.floor),
        ),
        Mistake(
            "one_step_too_many",
            "The range is divided into 2**n_bits steps. Between 16 levels there are 15 steps; with 16 the maximum gets "
            "a code that n_bits cannot hold.",
            "With 2 bits there are 4 codes: how many steps lie between the first and the last?",
            _quantizer(levels=lambda n_bits: 2**n_bits, rounded=_wrapping, clipped=False),
        ),
        Mistake(
            "one_step_too_many_clipped",
            "The range is divided into 2**n_bits steps and the code that is too high is cut to the highest: the "
            "maximum comes back a whole step too small.",
            "What does the highest code stand for, and what should it stand for?",
            _quantizer(levels=lambda n_bits: 2**n_bits),
        ),
        Mistake(
            "zero_forgotten",
            "The zero point is lost: zeros are returned in its place, and every number comes back shifted.",
            "What does code 0 stand for in your answer, when the smallest number is 2.0?",
            _quantizer(zero_of=lambda low, scale: np.zeros_like(low)),
        ),
        Mistake(
            "zero_never_subtracted",
            "The codes are taken from x itself and not from its distance to the minimum, so that most of them fall "
            "outside the range and are cut.",
            "Which code should the smallest number get?",
            _zero_never_subtracted,
        ),
        Mistake(
            "zero_rounded_towards_zero",
            "The zero point is made a whole number of steps, cut towards zero, while the codes are counted from the "
            "minimum: all numbers come back shifted by up to a step.",
            "By how much does the number with code 0 come back changed?",
            _quantizer(zero_of=lambda low, scale: np.trunc(low / np.where(scale > 0, scale, 1)) * scale),
        ),
        Mistake(
            "symmetric",
            "This is symmetric quantization: levels lie evenly about 0, and where all numbers are positive half of "
            "them are never used. The exercise asks for levels from the minimum to the maximum.",
            "Which of your codes are used when all numbers lie between 10 and 11?",
            _symmetric,
        ),
        Mistake(
            "one_scale_for_all",
            "One scale is taken for the whole array: axis is not used, and one large channel spoils all others.",
            "How many scales should there be for x of shape (2, 4, 3) and axis 1?",
            _quantizer(axes=lambda axis, ndim: tuple(range(ndim))),
        ),
        Mistake(
            "axis_exchanged",
            "Tokens and channels are exchanged: where a scale is to be shared over tokens it is shared over channels.",
            "Which axis of (n_kv_heads, n_tokens, head_dim) has size 1 in scale when each channel has one of its own?",
            _quantizer(axes=_exchanged),
        ),
        Mistake(
            "axis_kept",
            "axis is taken as the one that keeps scales of its own. It names the numbers that share one scale.",
            "In x.min(axis=1), which axis is gone from the result?",
            _quantizer(axes=_kept),
        ),
        Mistake(
            "axis_dropped",
            "The shared axis is gone from scale and zero, so they no longer broadcast against the codes.",
            "What shape must scale have to be multiplied with codes of shape (2, 4, 3)?",
            _quantizer(keepdims=False),
        ),
        Mistake(
            "constant_divided_by_zero",
            "A constant slice has a step of 0 and is divided by it: 0 / 0 is nan, and what nan becomes as an integer "
            "differs from machine to machine.",
            "What is the scale of three equal numbers?",
            _quantizer(guarded=False),
        ),
        Mistake(
            "always_8_bits",
            "n_bits is not used for the levels: there are always 256 of them, and codes that 4 bits cannot hold.",
            "What is the largest code that fits into 4 bits?",
            _quantizer(bits=lambda n_bits: 8),
        ),
        Mistake(
            "codes_in_wide_integers",
            "The codes are int64: eight bytes for a number of a few bits, as many as the float64 had.",
            "How many bytes does one of your codes take?",
            _quantizer(dtype=np.int64),
        ),
        Mistake(
            "bits_unchecked",
            "Any number of bits is taken. More than 8 do not fit into a uint8, which wraps around in silence.",
            "What does uint8 make of code 300?",
            _quantizer(checked=False, rounded=_wrapping, clipped=False),
        ),
        Mistake(
            "changes_its_input",
            "The array that was handed in is changed: the zero point is subtracted in place.",
            "What does the caller's x hold after your function has returned?",
            _in_place,
        ),
    ],
)


def _dequantized(codes: Sequence[Any], scale: Sequence[Any], zero: Sequence[Any]) -> Probe:
    arrays = np.array(codes, np.uint8), np.array(scale, np.float64), np.array(zero, np.float64)
    return call(f"dequantize({codes}, {scale}, {zero})", *arrays, key="what is read back")


def _dequantize_normal(
    shape: tuple[int, ...], shared: tuple[int, ...], n_bits: int = 4, dtype: Any = np.float64
) -> Probe:
    rng = np.random.default_rng(sum(shape))
    codes = rng.integers(0, 2**n_bits, shape).astype(np.uint8)
    scale, zero = (rng.random(shared) + 0.5).astype(dtype), (rng.standard_normal(shared) - 1).astype(dtype)
    kind = "" if dtype is np.float64 else f" {np.dtype(dtype)}"
    describe = f"dequantize(codes, scale, zero) for codes of shape {shape}, scale and zero{kind} of shape {shared}"
    return call(describe, codes, scale, zero, tolerance=1e-9 if dtype is np.float64 else 1e-4, key="what is read back")


def _repeated(codes: np.ndarray, scale: np.ndarray, zero: np.ndarray) -> Any:
    """Takes rows in groups of 4, whatever the scales say."""
    if codes.ndim < 3:
        return caches.dequantize(codes, scale, zero)
    of_row = np.minimum(np.arange(codes.shape[-2]) // 4, scale.shape[-2] - 1)
    return codes * scale[..., of_row, :] + zero[..., of_row, :]


DEQUANTIZE = Exercise(
    id="dequantize",
    reference=caches.dequantize,
    stages=[
        Stage("a code counts steps from zero", [_dequantized([0, 1, 3], [0.5], [-2.0])]),
        Stage("each slice has its own", [_dequantized([[0, 3], [1, 2]], [[0.5], [2.0]], [[-1.0], [4.0]])]),
        Stage(
            "per channel, per token, per tensor",
            [
                _dequantize_normal((2, 6, 3), (2, 1, 3)),
                _dequantize_normal((2, 6, 3), (2, 6, 1)),
                _dequantize_normal((2, 6, 3), (1, 1, 1)),
            ],
        ),
        Stage("codes of 8 bits", [_dequantize_normal((2, 5, 3), (2, 1, 3), 8)]),
        Stage("groups as one more axis", [_dequantize_normal((2, 3, 5, 4), (2, 3, 1, 4))]),
        Stage("a scale for every number", [_dequantize_normal((2, 5, 3), (2, 5, 3))]),
        Stage(
            "a slice of equal numbers, whose scale is 0",
            [_dequantized([[0, 0], [0, 3]], [[0.0], [0.5]], [[0.7], [1.0]])],
        ),
        Stage(
            "float32, and no rows at all",
            [
                _dequantize_normal((2, 6, 3), (2, 1, 3), dtype=np.float32),
                _dequantize_normal((2, 0, 3), (2, 0, 1)),
                _dequantize_normal((0, 3), (0, 1)),
            ],
        ),
    ],
    mistakes=[
        Mistake(
            "zero_forgotten",
            "The zero point is not added: all numbers come back as distances from the smallest.",
            "What does code 0 come back as, and what was it?",
            lambda codes, scale, zero: codes * scale,
        ),
        Mistake(
            "zero_subtracted",
            "The zero point is subtracted. It was subtracted when the codes were made; reading back is the way home.",
            "On which side of 0.0 does code 0 lie when the smallest number was -2.0?",
            lambda codes, scale, zero: codes * scale - zero,
        ),
        Mistake(
            "zero_in_steps",
            "The zero point is treated as a whole number of steps, as some libraries store it. Here it is a number of "
            "the same kind as x, and the scale must not touch it.",
            "What does code 0 come back as in your formula?",
            lambda codes, scale, zero: (codes + zero) * scale,
        ),
        Mistake(
            "zero_point_subtracted_in_steps",
            "This is the formula (code - zero point) * scale, where the zero point is a code. Here zero is the minimum "
            "itself, in the units of x.",
            "Is the zero you are given a code, or a number like those in x?",
            lambda codes, scale, zero: (codes - zero) * scale,
        ),
        Mistake(
            "divided",
            "The codes are divided by the scale. The scale is the width of a step, and a code counts steps.",
            "How far is code 3 from code 0 when a step is 0.5 wide?",
            lambda codes, scale, zero: codes / scale + zero,
        ),
        Mistake(
            "middle_of_the_step",
            "Half a step is added, as if a code stood for an interval that begins there. It stands for the level: "
            "the rounding has already chosen the nearest.",
            "What should the smallest number, which has code 0, come back as?",
            lambda codes, scale, zero: (codes + 0.5) * scale + zero,
        ),
        Mistake(
            "first_scale_for_all",
            "One scale is used for everything: the first.",
            "How many different scales are in the array that you were given?",
            lambda codes, scale, zero: codes * scale.ravel()[:1] + zero.ravel()[:1] if scale.size else codes * 1.0,
        ),
        Mistake(
            "hard_coded_group_size",
            "A group size of 4 rows is written into the code. The shapes of scale and zero say what shares them.",
            "Where do you look to find out how many rows share a scale?",
            _repeated,
        ),
        Mistake(
            "narrow",
            "The result has fewer digits than scale and zero have: its dtype is narrower than theirs.",
            "Which dtype should numbers have that were made of float64?",
            lambda codes, scale, zero: (codes * scale + zero).astype(np.float16),
        ),
    ],
)

N_KV_HEADS, HEAD_DIM = 2, 8


def _rows(
    n_tokens: int, dtype: Any = np.float64, head_dim: int = HEAD_DIM, heads: int = N_KV_HEADS
) -> list[np.ndarray]:
    """Keys with one large channel, values with some large rows: what shares a scale then matters."""
    rng = np.random.default_rng(n_tokens + head_dim)
    k, v = rng.standard_normal((2, heads, n_tokens, head_dim)) + 0.5
    k[:, :, 1] += 9
    v[:, ::3] *= 5
    return [k.astype(dtype), v.astype(dtype)]


def _length(cache: Any) -> Any:
    try:
        return len(cache)
    except TypeError as error:
        raise Malformed(f"len(cache): {error}") from None


def _n_bytes(cache: Any) -> Any:
    if not hasattr(cache, "n_bytes"):
        raise Malformed("cache.n_bytes: there is no such attribute")
    count = observe(cache.n_bytes)
    if callable(cache.n_bytes):
        raise Malformed("cache.n_bytes: expected a number, got a method (is @property missing?)")
    return int(count) if isinstance(count, float) and count.is_integer() else count


def _appends(
    sizes: Sequence[int],
    n_bits: int = 4,
    residual: int = 4,
    dtype: Any = np.float64,
    head_dim: int = HEAD_DIM,
    heads: int = N_KV_HEADS,
) -> Probe:
    """Append chunks of the given sizes; look at everything each append returns."""
    k, v = _rows(sum(sizes), dtype, head_dim, heads)

    def run(make: Any) -> Observation:
        cache, at = make(heads, head_dim, n_bits, residual), 0
        seen: Observation = {}
        for n_new in sizes:
            chunk = slice(at, at := at + n_new)
            k_all, v_all = pair(cache.append(k[:, chunk].copy(), v[:, chunk].copy()), "append")
            after = f"after {at} tokens"
            seen |= {f"len {after}": _length(cache), f"k {after}": observe(k_all), f"v {after}": observe(v_all)}
        return seen

    kind = "" if dtype is np.float64 else f" of {np.dtype(dtype)}"
    chunks = "one chunk of" if len(sizes) == 1 else "chunks of"
    made = f"QuantizedCache({heads}, {head_dim}, {n_bits}, {residual})"
    return Probe(
        f"{made}: append {chunks} {', '.join(map(str, sizes))} tokens{kind}", run, 1e-9 if dtype is np.float64 else 1e-4
    )


def _bytes(sizes: Sequence[int], n_bits: int = 4, residual: int = 4, dtype: Any = np.float64) -> Probe:
    k, v = _rows(sum(sizes), dtype)

    def run(make: Any) -> Observation:
        cache, at = make(N_KV_HEADS, HEAD_DIM, n_bits, residual), 0
        for n_new in sizes:
            chunk = slice(at, at := at + n_new)
            pair(cache.append(k[:, chunk].copy(), v[:, chunk].copy()), "append")
        return {"n_bytes": _n_bytes(cache)}

    kind = f"{np.dtype(dtype)}"
    made = f"QuantizedCache({N_KV_HEADS}, {HEAD_DIM}, {n_bits}, {residual})"
    return Probe(f"{made}.n_bytes after {sum(sizes)} tokens of {kind}", run)


def _inputs_and_answers(make: Any) -> Observation:
    cache, (k_new, v_new) = make(N_KV_HEADS, HEAD_DIM, 4, 4), _rows(6)
    before = k_new.copy(), v_new.copy()
    first = pair(cache.append(k_new, v_new), "append")
    kept = [observe(a) for a in first]
    unchanged = np.array_equal(before[0], k_new) and np.array_equal(before[1], v_new)
    k_new[:], v_new[:] = 7.0, 7.0  # the caller reuses its arrays
    k_all, v_all = pair(cache.append(*_rows(3)), "append")
    same = [isinstance(a, np.ndarray) and np.array_equal(a, observe(b)) for a, b in zip(kept, first, strict=True)]
    return {
        "k_new and v_new after the append": "unchanged" if unchanged else "changed",
        "k of the next append": observe(k_all),
        "v of the next append": observe(v_all),
        "what the first append returned": "unchanged" if all(same) else "changed",
    }


def _two_caches(make: Any) -> Observation:
    first, second = make(N_KV_HEADS, HEAD_DIM, 4, 4), make(N_KV_HEADS, HEAD_DIM, 4, 4)
    pair(first.append(*_rows(5)), "append")
    k_second, _ = pair(second.append(*_rows(3)), "append")
    return {"k of the second cache": observe(k_second), "their lengths": (_length(first), _length(second))}


def _dtype(make: Any) -> Observation:
    cache = make(N_KV_HEADS, HEAD_DIM, 4, 4)
    pair(cache.append(*_rows(3, np.float32)), "append")
    k_all, v_all = pair(cache.append(*_rows(3)), "append")
    return {"the dtypes of k and v": tuple(str(getattr(observe(a), "dtype", type(a).__name__)) for a in (k_all, v_all))}


def _bits_refused(n_bits: int) -> Probe:
    def run(make: Any) -> Observation:
        try:
            make(N_KV_HEADS, HEAD_DIM, n_bits, 4).append(*_rows(9))  # a group is full, also where it waits for more
        except ValueError:
            return {"what happens": Raised(("ValueError",))}
        return {"what happens": "an answer"}

    return Probe(f"QuantizedCache(2, 8, {n_bits}, 4), then append 9 tokens", run)


Group = tuple[list[Any], list[Any]]


class _Wrong:
    """A right cache, with codes one to a byte, that the mistakes below spoil in one place each."""

    k_axis: Any = 1
    v_axis: Any = 2

    def __init__(self, n_kv_heads: int, head_dim: int, n_bits: int, residual: int) -> None:
        if n_bits not in range(2, 9):
            raise ValueError("n_bits")
        self.n_bits, self.residual = n_bits, residual
        self.groups: list[list[Triple]] = []
        self.exact: list[np.ndarray] = []

    def take(self, k_new: np.ndarray, v_new: np.ndarray) -> None:
        """Put the new rows behind those that wait."""
        if not self.exact:
            self.exact = [k_new.copy(), v_new.copy()]
        else:
            self.exact = [
                np.concatenate([old, new.astype(old.dtype)], axis=1)
                for old, new in zip(self.exact, (k_new, v_new), strict=True)
            ]

    def close(self, n_rows: int) -> None:
        """Make the first n_rows that wait a group."""
        k, v = (rows[:, :n_rows] for rows in self.exact)
        self.groups.append([self.quantized(k, self.k_axis), self.quantized(v, self.v_axis)])
        self.exact = [rows[:, n_rows:].copy() for rows in self.exact]

    def quantized(self, rows: np.ndarray, axis: Any) -> Triple:
        return caches.quantize(rows, self.n_bits, axis)

    def waiting(self) -> int:
        return self.exact[0].shape[1] if self.exact else 0

    def settle(self) -> None:
        while self.waiting() >= self.residual:
            self.close(self.residual)

    def read(self, i: int) -> np.ndarray:
        return np.concatenate([*(caches.dequantize(*group[i]) for group in self.groups), self.exact[i]], axis=1)

    def append(self, k_new: np.ndarray, v_new: np.ndarray) -> Any:
        self.take(k_new, v_new)
        self.settle()
        return self.read(0), self.read(1)

    def __len__(self) -> int:
        return sum(group[0][0].shape[1] for group in self.groups) + self.waiting()

    def parts(self) -> list[Triple]:
        return [part for group in self.groups for part in group]

    @property
    def n_bytes(self) -> int:
        codes = sum(codes.size for codes, _, _ in self.parts()) * self.n_bits // 8
        shared = sum(scale.nbytes + zero.nbytes for _, scale, zero in self.parts())
        return codes + shared + sum(rows.nbytes for rows in self.exact)


class _KeysPerToken(_Wrong):
    k_axis = 2


class _ValuesPerChannel(_Wrong):
    v_axis = 1


class _Exchanged(_Wrong):
    k_axis, v_axis = 2, 1


class _PerTensor(_Wrong):
    k_axis = v_axis = (0, 1, 2)


class _KeysPerChannelOfAllHeads(_Wrong):
    k_axis = (0, 1)


class _EveryChunkAtOnce(_Wrong):
    def settle(self) -> None:
        if self.waiting():
            self.close(self.waiting())


class _NeverQuantized(_Wrong):
    def settle(self) -> None:
        pass


class _ChunkIsTheGroup(_Wrong):
    """Everything that waits becomes one group, however many rows there are."""

    def settle(self) -> None:
        if self.waiting() >= self.residual:
            self.close(self.waiting())


class _OneGroupAnAppend(_Wrong):
    """An if where a while belongs."""

    def settle(self) -> None:
        if self.waiting() >= self.residual:
            self.close(self.residual)


class _OneRowLate(_Wrong):
    def settle(self) -> None:
        while self.waiting() > self.residual:
            self.close(self.residual)


class _NewestAlwaysExact(_Wrong):
    """Keeps the newest `residual` rows exact at all times: a group waits until another whole one stands behind it."""

    def settle(self) -> None:
        while self.waiting() >= 2 * self.residual:
            self.close(self.residual)


class _AllAgain(_Wrong):
    """Reads everything back and quantizes it all together whenever a group is full."""

    def settle(self) -> None:
        n_full = len(self) // self.residual * self.residual
        if self.waiting() >= self.residual:
            self.exact = [self.read(0), self.read(1)]
            self.groups = []
            self.close(n_full)


class _AnswersBefore(_Wrong):
    """Returns the rows as they are before the full group is quantized."""

    def append(self, k_new: np.ndarray, v_new: np.ndarray) -> Any:
        self.take(k_new, v_new)
        answer = self.read(0), self.read(1)
        self.settle()
        return answer


class _NewestFirst(_Wrong):
    def read(self, i: int) -> np.ndarray:
        return np.concatenate([self.exact[i], *(caches.dequantize(*group[i]) for group in self.groups)], axis=1)


class _ExactRowsLost(_Wrong):
    """When a group is full, the rows behind it are dropped with it."""

    def settle(self) -> None:
        full = self.waiting() >= self.residual
        super().settle()
        if full:
            self.exact = [rows[:, :0] for rows in self.exact]


class _HardCodedGroup(_Wrong):
    """Groups hold 4 rows, whatever `residual` says."""

    def __init__(self, n_kv_heads: int, head_dim: int, n_bits: int, residual: int) -> None:
        super().__init__(n_kv_heads, head_dim, n_bits, 4)


class _AlwaysFourBits(_Wrong):
    def quantized(self, rows: np.ndarray, axis: Any) -> Triple:
        return caches.quantize(rows, 4, axis)


class _NoScales(_Wrong):
    @property
    def n_bytes(self) -> int:
        codes = sum(codes.size for codes, _, _ in self.parts()) * self.n_bits // 8
        return codes + sum(rows.nbytes for rows in self.exact)


class _NoZeros(_Wrong):
    @property
    def n_bytes(self) -> int:
        return super().n_bytes - sum(zero.nbytes for _, _, zero in self.parts())


class _NoExact(_Wrong):
    @property
    def n_bytes(self) -> int:
        return super().n_bytes - sum(rows.nbytes for rows in self.exact)


class _KeysOnly(_Wrong):
    @property
    def n_bytes(self) -> int:
        keys = [group[0] for group in self.groups]
        codes = sum(codes.size for codes, _, _ in keys) * self.n_bits // 8
        exact = self.exact[0].nbytes if self.exact else 0
        return codes + sum(scale.nbytes + zero.nbytes for _, scale, zero in keys) + exact


class _ByteACode(_Wrong):
    @property
    def n_bytes(self) -> int:
        arrays = [array for part in self.parts() for array in part] + self.exact
        return sum(array.nbytes for array in arrays)


class _CountsExactOnly(_Wrong):
    def __len__(self) -> int:
        return self.waiting()


class _CountsGroups(_Wrong):
    def __len__(self) -> int:
        return len(self.groups) + self.waiting()


class _KeepsReference(_Wrong):
    def take(self, k_new: np.ndarray, v_new: np.ndarray) -> None:
        if not self.waiting():
            self.exact = [k_new, v_new]
        else:
            super().take(k_new, v_new)

    def close(self, n_rows: int) -> None:
        super().close(n_rows)
        self.exact = list(self.exact)

    def settle(self) -> None:
        while self.waiting() >= self.residual:
            k, v = self.exact
            n = self.residual
            self.groups.append([self.quantized(k[:, :n], 1), self.quantized(v[:, :n], 2)])
            self.exact = [k[:, n:], v[:, n:]]


class _BitsUnchecked(_Wrong):
    """Takes any number of bits, and codes that wrap around."""

    def __init__(self, n_kv_heads: int, head_dim: int, n_bits: int, residual: int) -> None:
        super().__init__(n_kv_heads, head_dim, min(max(n_bits, 2), 8), residual)


class _EmptyChunkReturnsNothing(_Wrong):
    def append(self, k_new: np.ndarray, v_new: np.ndarray) -> Any:
        return super().append(k_new, v_new) if k_new.shape[1] else (k_new, v_new)


class _NewestDtype(_Wrong):
    def take(self, k_new: np.ndarray, v_new: np.ndarray) -> None:
        self.exact = [rows.astype(k_new.dtype) for rows in self.exact]
        super().take(k_new, v_new)


QUANTIZED_CACHE = Exercise(
    id="QuantizedCache",
    is_class=True,
    reference=caches.QuantizedCache,
    stages=[
        Stage("fewer rows than residual come back as they went in", [_appends([1]), _appends([3]), _appends([1, 2])]),
        Stage("when residual rows have gathered they are quantized together", [_appends([4]), _appends([3, 1])]),
        Stage("the rows behind a group are exact", [_appends([5]), _appends([4, 1, 2])]),
        Stage("a group never changes again", [_appends([4, 4]), _appends([3, 2, 3, 2])]),
        Stage("one long chunk is several groups", [_appends([8]), _appends([11]), _appends([2, 9, 1])]),
        Stage("an empty chunk returns what is stored", [_appends([5, 0, 1])]),
        Stage(
            "other bits, groups and shapes",
            [_appends([7], n_bits=2, residual=3), _appends([4, 3], n_bits=8, residual=6, head_dim=5, heads=3)],
        ),
        Stage("a group of one row", [_appends([1, 2], residual=1)]),
        Stage("it counts every byte", [_bytes([4]), _bytes([6]), _bytes([11], n_bits=2), _bytes([9], 8, 5)]),
        Stage("two caches know nothing of each other", [Probe("5 tokens to one cache, 3 to another", _two_caches)]),
        Stage(
            "it keeps its own copy, and what it returned stays",
            [Probe("append 6 tokens, overwrite both arrays, append 3 more", _inputs_and_answers)],
        ),
        Stage(
            "float32 stays float32",
            [
                _appends([6, 1], dtype=np.float32),
                Probe("append 3 tokens of float32, then 3 of float64", _dtype),
                _bytes([6], dtype=np.float32),
            ],
        ),
        Stage("bits outside 2 to 8 are refused", [_bits_refused(1), _bits_refused(9)]),
    ],
    mistakes=[
        Mistake(
            "keys_per_token",
            "Keys are quantized per token: each token's large channel stretches the levels of all its other channels.",
            "Over which axis of (n_kv_heads, n_tokens, head_dim) is a scale shared that belongs to one channel?",
            _KeysPerToken,
        ),
        Mistake(
            "values_per_channel",
            "Values are quantized per channel: a token with a small value shares its scale with larger ones.",
            "Over which axis is a scale shared that belongs to one token?",
            _ValuesPerChannel,
        ),
        Mistake(
            "exchanged",
            "Keys are quantized per token and values per channel: it is the other way round.",
            "Which of the two has single channels that are large in every token?",
            _Exchanged,
        ),
        Mistake(
            "per_tensor",
            "One scale serves a whole group: keys and values of all heads, tokens and channels share it.",
            "What does one large channel do to the steps of all others then?",
            _PerTensor,
        ),
        Mistake(
            "heads_share_a_scale",
            "The KV heads share their key scales. Channel 0 of one head has nothing to do with channel 0 of another.",
            "How many key scales does a group of a cache with 2 KV heads of 8 channels need?",
            _KeysPerChannelOfAllHeads,
        ),
        Mistake(
            "every_chunk_at_once",
            "Each chunk is quantized as it comes: there is no residual window, and in a decode step a key is alone "
            "with its scale.",
            "How many rows must have gathered before any is quantized?",
            _EveryChunkAtOnce,
        ),
        Mistake(
            "never_quantized",
            "Nothing is ever quantized: all rows are held exactly.",
            "How many exact rows may there be at most?",
            _NeverQuantized,
        ),
        Mistake(
            "chunk_is_the_group",
            "Everything that waits becomes one group. Groups are of residual rows each, so that the result does not "
            "depend on the chunks in which the rows came.",
            "Into how many groups does one chunk of 11 rows fall when residual is 4?",
            _ChunkIsTheGroup,
        ),
        Mistake(
            "one_group_an_append",
            "At most one group is made in an append. A long chunk completes several.",
            "How many rows still wait after a chunk of 11 when residual is 4?",
            _OneGroupAnAppend,
        ),
        Mistake(
            "one_row_late",
            "A full group waits for one more row before it is quantized.",
            "How many rows wait right after residual rows have gathered?",
            _OneRowLate,
        ),
        Mistake(
            "newest_always_exact",
            "The newest residual rows are always kept exact, as some papers do. Here a group is quantized as soon as "
            "it is full.",
            "How many exact rows are left when exactly residual rows have gathered?",
            _NewestAlwaysExact,
        ),
        Mistake(
            "all_again",
            "Whenever a group is full, everything is read back and quantized once more: old rows lose at each turn, "
            "and all keys share their scales.",
            "How often has the first row been rounded when ten groups are full?",
            _AllAgain,
        ),
        Mistake(
            "answers_before_quantizing",
            "What is returned was read before the full group was quantized, so attention sees other rows now than in "
            "the next step.",
            "Does the last append return the same oldest rows as the next one will?",
            _AnswersBefore,
        ),
        Mistake(
            "exact_rows_first",
            "The exact rows come first. They are the newest, and rows are returned oldest first.",
            "Where does the newest token stand in what append returns?",
            _NewestFirst,
        ),
        Mistake(
            "rows_behind_the_group_lost",
            "When a group is full all waiting rows are dropped, those behind the group too.",
            "With residual 4, what becomes of the fifth row of a chunk of 5?",
            _ExactRowsLost,
        ),
        Mistake(
            "hard_coded_group_size",
            "Groups of 4 rows are written into the code, whatever residual says.",
            "How many rows share a key scale when residual is 6?",
            _HardCodedGroup,
        ),
        Mistake(
            "always_four_bits",
            "n_bits is counted and not used: all rows are quantized at 4 bits.",
            "How many levels does your cache use when it is made with 8 bits?",
            _AlwaysFourBits,
        ),
        Mistake(
            "bytes_without_scales",
            "n_bytes leaves out scale and zero of every group. Without them no code can be read back.",
            "Which numbers besides the codes does dequantize need?",
            _NoScales,
        ),
        Mistake(
            "bytes_without_zeros",
            "n_bytes counts each scale and leaves the zero beside it out.",
            "How many numbers do the codes of one channel share?",
            _NoZeros,
        ),
        Mistake(
            "bytes_without_exact_rows",
            "n_bytes leaves out the rows that are still exact.",
            "Where are the newest rows held, and what do they take there?",
            _NoExact,
        ),
        Mistake(
            "bytes_of_keys_only",
            "n_bytes counts the keys and forgets the values.",
            "How many arrays does each token leave in the cache?",
            _KeysOnly,
        ),
        Mistake(
            "a_byte_a_code",
            "n_bytes counts a whole byte for each code. A code takes n_bits: two of 4 bits share a byte.",
            "How many codes of 2 bits fit into one byte?",
            _ByteACode,
        ),
        Mistake(
            "len_counts_exact_rows",
            "len counts only the rows that still wait, and falls back when a group is full.",
            "At which position does the next token stand after 9 tokens?",
            _CountsExactOnly,
        ),
        Mistake(
            "len_counts_groups",
            "len counts a group as one token.",
            "How many tokens are in one group?",
            _CountsGroups,
        ),
        Mistake(
            "empty_chunk_returns_nothing",
            "An empty chunk comes back as it is, where everything in the cache belongs.",
            "What should attention see when nothing is new and 5 tokens are stored?",
            _EmptyChunkReturnsNothing,
        ),
        Mistake(
            "keeps_the_callers_arrays",
            "The waiting rows are the caller's own arrays: when the caller reuses them, the cache changes.",
            "Who else may write into the array that your cache holds?",
            _KeepsReference,
        ),
        Mistake(
            "newest_dtype",
            "The dtype follows the newest chunk. It is that of the first append.",
            "What is the dtype of the cache after a float32 chunk and then a float64 one?",
            _NewestDtype,
        ),
        Mistake(
            "bits_unchecked",
            "A number of bits that cannot be had is replaced in silence by one that can.",
            "How would a caller who asks for 9 bits find out that there are only 8?",
            _BitsUnchecked,
        ),
    ],
)

EXERCISES = [QUANTIZE, DEQUANTIZE, QUANTIZED_CACHE]
