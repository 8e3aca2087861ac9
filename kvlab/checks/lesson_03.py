"""Checks for lesson 03: the offset causal mask, rotary positions, and rotating before storing."""

from collections.abc import Callable
from typing import Any

import numpy as np

from kvlab.attention import offset_mask
from kvlab.caches import ConcatCache
from kvlab.checks.model import Exercise, Mistake, Observation, Probe, Stage, call, observe, pair
from kvlab.positions import rotate


def _mask(n_new: int, n_total: int) -> Probe:
    return call(f"offset_mask({n_new}, {n_total})", n_new, n_total, key="the mask")


def _band(n_new: int, n_total: int, shift: int) -> np.ndarray:
    """Keys up to `shift` past the query's own position."""
    return np.tril(np.ones((n_new, n_total), bool), n_total - n_new + shift)


def _square_in_front(n_new: int, n_total: int) -> np.ndarray:
    """A square triangle over the new tokens, and nothing of the past."""
    return np.tril(np.ones((n_new, n_total), bool), n_total - n_new) & (np.arange(n_total) >= n_total - n_new)


OFFSET_MASK = Exercise(
    id="offset_mask",
    reference=offset_mask,
    stages=[
        Stage("with nothing cached it is the causal triangle", [_mask(1, 1), _mask(4, 4)]),
        # The chunk comes before the single token: it is the case that one-token tests miss.
        Stage("a chunk over a cache hangs from the bottom right", [_mask(3, 7), _mask(2, 5), _mask(5, 6)]),
        Stage("one new token sees every key", [_mask(1, 6)]),
        Stage("an empty chunk has no rows", [_mask(0, 4), _mask(0, 0)]),
        Stage("long texts", [_mask(3, 300)]),
    ],
    mistakes=[
        Mistake(
            "top_left_triangle",
            "The triangle hangs from the top-left corner: query 0 is treated as if it stood at position 0, "
            "so the new tokens lose almost all of the cache.",
            "With 7 tokens in all of which 3 are new, at which position does the first new token stand?",
            lambda n_new, n_total: np.tril(np.ones((n_new, n_total), bool)),
        ),
        Mistake(
            "only_new_tokens",
            "The causal triangle covers only the new tokens: none of the cached keys can be seen.",
            "What was the cache kept for, if no new token may look at it?",
            _square_in_front,
        ),
        Mistake(
            "no_mask",
            "Every query sees every key: within a chunk, earlier tokens look at later ones.",
            "May the first token of a chunk see the second one, which the model has yet to predict from it?",
            lambda n_new, n_total: np.ones((n_new, n_total), bool),
        ),
        Mistake(
            "no_mask_over_a_cache",
            "The mask is causal only while the cache is empty; over a cache every query sees every key, "
            "so that a second chunk becomes bidirectional.",
            "In a chunk of 3 that follows 4 cached tokens, may the first of the 3 see the third?",
            lambda n_new, n_total: _band(n_new, n_total, 0) if n_new == n_total else np.ones((n_new, n_total), bool),
        ),
        Mistake(
            "strict",
            "A token cannot see itself: the comparison leaves the query's own position out.",
            "When the very first token of a text asks, which keys are there for it to see?",
            lambda n_new, n_total: _band(n_new, n_total, -1),
        ),
        Mistake(
            "one_ahead",
            "Every query sees one key too many: the token after itself.",
            "What could a model that sees the next token learn from predicting it?",
            lambda n_new, n_total: _band(n_new, n_total, 1),
        ),
        Mistake(
            "inverted",
            "The mask is inverted: True stands where a key is hidden. Here True means the query may look.",
            "How many True entries should the row of a single new token have?",
            lambda n_new, n_total: ~offset_mask(n_new, n_total),
        ),
        Mistake(
            "square",
            "The mask is square, (n_new, n_new): it covers the new tokens only, where scores are (n_new, n_total).",
            "How many columns does the score matrix of 3 new queries over 7 keys have?",
            lambda n_new, n_total: np.tril(np.ones((n_new, n_new), bool)),
        ),
        Mistake(
            "whole_square",
            "The mask is (n_total, n_total): it has rows for tokens whose queries were used long ago and never kept.",
            "How many queries are there in a step that feeds in 3 new tokens?",
            lambda n_new, n_total: np.tril(np.ones((n_total, n_total), bool)),
        ),
        Mistake(
            "transposed",
            "Rows and columns are exchanged: the axes are (keys, queries).",
            "Does a row of the score matrix belong to a query or to a key?",
            lambda n_new, n_total: offset_mask(n_new, n_total).T,
        ),
        Mistake(
            "ones_and_zeros",
            "The triangle is right and its entries are numbers, 1.0 and 0.0. A mask of this course is bool: True where "
            "the query may look.",
            "What does np.ones give when it is not told a dtype?",
            lambda n_new, n_total: offset_mask(n_new, n_total).astype(float),
        ),
        Mistake(
            "empty_chunk_has_all_rows",
            "An empty chunk gets the whole square: a slice that counts n_new rows from the end takes all of them when "
            "n_new is 0.",
            "Which rows does a[-0:] take?",
            lambda n_new, n_total: np.tri(n_total, dtype=bool)[-n_new:],
        ),
        Mistake(
            "additive",
            "This is the additive form, 0 and -inf, as some libraries want it. The exercise asks for True and False.",
            "What is True + True in a mask that will be added to scores?",
            lambda n_new, n_total: np.where(offset_mask(n_new, n_total), 0.0, -np.inf),
        ),
    ],
)


def _vectors(n_heads: int, n_tokens: int, head_dim: int, dtype: Any = np.float64) -> np.ndarray:
    return np.random.default_rng(n_heads + 10 * n_tokens).standard_normal((n_heads, n_tokens, head_dim)).astype(dtype)


def _rotation(
    positions: list[int], n_heads: int = 2, head_dim: int = 6, dtype: Any = np.float64, **base: float
) -> Probe:
    x, where = _vectors(n_heads, len(positions), head_dim, dtype), np.array(positions, dtype=np.int64)
    extra = "".join(f", {k}={v:g}" for k, v in base.items())
    kind = "" if dtype is np.float64 else f" {np.dtype(dtype)}"
    describe = f"rotate(x, np.array({positions}){extra}) for x{kind} of shape {x.shape}"
    tolerance = 1e-9 if dtype is np.float64 else 1e-4
    return call(describe, x, where, tolerance=tolerance, key="the rotated x", named=base)


def _turned(x: np.ndarray, angles: np.ndarray, interleaved: bool = False) -> np.ndarray:
    """x with pair i of each token turned by angles[token, i]."""
    cos, sin = np.cos(angles).astype(x.dtype), np.sin(angles).astype(x.dtype)
    if interleaved:
        out = np.empty_like(x)
        out[..., 0::2] = x[..., 0::2] * cos - x[..., 1::2] * sin
        out[..., 1::2] = x[..., 0::2] * sin + x[..., 1::2] * cos
        return out
    first, second = np.split(x, 2, axis=-1)
    return np.concatenate([first * cos - second * sin, first * sin + second * cos], axis=-1)


def _wrong_rotation(
    angle: Callable[[np.ndarray, np.ndarray, float, int], np.ndarray], interleaved: bool = False
) -> Callable[..., np.ndarray]:
    """A rotation by `angle(positions, pair indices, base, head_dim)`."""

    def wrong(x: np.ndarray, positions: np.ndarray, base: float = 10000.0) -> np.ndarray:
        head_dim = x.shape[-1]
        pairs = np.arange(head_dim // 2)
        return _turned(x, angle(positions[:, None], pairs[None, :], base, head_dim), interleaved)

    return wrong


def _usual(p: np.ndarray, i: np.ndarray, base: float, d: int) -> np.ndarray:
    return p * base ** (-2 * i / d)


def _angles_in_the_dtype_of_x(x: np.ndarray, positions: np.ndarray, base: float = 10000.0) -> np.ndarray:
    half = x.shape[-1] // 2
    frequencies = (base ** (-np.arange(half) / half)).astype(x.dtype)
    return _turned(x, positions[:, None].astype(x.dtype) * frequencies)


def _in_place(x: np.ndarray, positions: np.ndarray, base: float = 10000.0) -> np.ndarray:
    x[...] = rotate(x, positions, base)
    return x


ROTATE = Exercise(
    id="rotate",
    reference=rotate,
    stages=[
        Stage("position 0 changes nothing", [_rotation([0])]),
        Stage("one token turns by its position", [_rotation([1]), _rotation([5])]),
        Stage("each token turns by its own position", [_rotation([3, 4, 5, 6]), _rotation([9, 0, 4])]),
        Stage("other head widths and bases", [_rotation([2, 7], 3, 8), _rotation([2, 7], 3, 4, base=500.0)]),
        Stage(
            "far positions, float32, and an empty chunk",
            [_rotation([100_000, 77_777], 1, 6, np.float32, base=20.0), _rotation([])],
        ),
    ],
    mistakes=[
        Mistake(
            "no_rotation",
            "Nothing is rotated: the vectors come back as they went in, so the model cannot tell positions apart.",
            "By what angle should the first pair of a token at position 1 turn?",
            lambda x, positions, base=10000.0: x.copy(),
        ),
        Mistake(
            "interleaved_pairs",
            "Neighbouring channels are paired (0 with 1, 2 with 3). Here channel i pairs with i + head_dim / 2; "
            "both are RoPE, but a checkpoint trained with one is wrong with the other.",
            "With head_dim 6, which channel turns together with channel 0?",
            _wrong_rotation(_usual, interleaved=True),
        ),
        Mistake(
            "wrong_sign",
            "The rotation runs backwards: the signs of the sine are exchanged.",
            "Where does the point (1, 0) go when it turns by a small positive angle?",
            _wrong_rotation(lambda p, i, base, d: -_usual(p, i, base, d)),
        ),
        Mistake(
            "degrees",
            "The angles are taken as degrees. np.cos and np.sin read radians.",
            "By how many radians does the first pair turn between two neighbouring positions?",
            _wrong_rotation(lambda p, i, base, d: np.deg2rad(_usual(p, i, base, d))),
        ),
        Mistake(
            "positions_restart",
            "The positions that were handed in are not used: tokens are numbered 0, 1, 2 from the start of the chunk.",
            "If 10 tokens are cached, at which position does the first token of the next chunk stand?",
            lambda x, positions, base=10000.0: rotate(x, np.arange(x.shape[1]), base),
        ),
        Mistake(
            "off_by_one",
            "Every position is one too high: the first token of a text stands at position 0.",
            "By what angle should a token at position 0 turn?",
            lambda x, positions, base=10000.0: rotate(x, positions + 1, base),
        ),
        Mistake(
            "one_frequency",
            "All pairs turn at the same speed. Each pair has a frequency of its own, slower with its index.",
            "What does base ** (-2 i / head_dim) give for pair 0, and what for the last pair?",
            _wrong_rotation(lambda p, i, base, d: p * np.ones_like(i)),
        ),
        Mistake(
            "exponent_without_the_two",
            "The frequencies fall too slowly: the exponent is -i / head_dim where -2 i / head_dim belongs.",
            "There are head_dim / 2 pairs: between which two exponents should they be spread?",
            _wrong_rotation(lambda p, i, base, d: p * base ** (-i / d)),
        ),
        Mistake(
            "growing_frequencies",
            "The frequencies grow with the pair's index: the exponent has lost its minus sign.",
            "Which pairs should turn slowly, the first ones or the last ones?",
            _wrong_rotation(lambda p, i, base, d: p * base ** (2 * i / d)),
        ),
        Mistake(
            "base_ignored",
            "The base is fixed at 10,000: the argument is not used.",
            "Llama 3 uses base 500,000. What in your code would change for it?",
            lambda x, positions, base=10000.0: rotate(x, positions),
        ),
        Mistake(
            "angles_in_float32",
            "The angles are computed in the dtype of x: near 50,000 radians, float32 numbers are 0.004 apart.",
            "How many decimals has a float32 number near 50,000?",
            _angles_in_the_dtype_of_x,
        ),
        Mistake(
            "changes_its_input",
            "The array that was handed in is changed. The caller may still need the vectors as they were.",
            "What does the caller's x hold after your function has returned?",
            _in_place,
        ),
    ],
)


def _append_in_chunks(sizes: list[int], base: float | None = None) -> Probe:
    """Append chunks of the given sizes, and look at what the cache has stored, not at what attention makes of it."""
    n_kv_heads, head_dim = 2, 6
    k, v = _vectors(n_kv_heads, sum(sizes), head_dim), _vectors(n_kv_heads, sum(sizes) + 1, head_dim)[:, 1:]

    def run(submission: Callable[..., Any]) -> Observation:
        cache, at, unchanged = ConcatCache(n_kv_heads, head_dim), 0, True
        returned: Observation = {}
        named = {} if base is None else {"base": base}
        for n_new in sizes:
            k_new, v_new = k[:, at : at + n_new].copy(), v[:, at : at + n_new].copy()
            k_all, v_all = pair(submission(cache, k_new, v_new, **named), "append_rotated")
            kept = np.array_equal(k_new, k[:, at : at + n_new]) and np.array_equal(v_new, v[:, at : at + n_new])
            unchanged = unchanged and kept
            at += n_new
            returned[f"the keys returned after {at} tokens"] = observe(k_all)
            returned[f"the values returned after {at} tokens"] = observe(v_all)
        nothing = np.zeros((n_kv_heads, 0, head_dim))
        k_stored, v_stored = cache.append(nothing, nothing)
        return {
            "tokens in the cache": len(cache),
            "the stored keys": observe(k_stored),
            "the stored values": observe(v_stored),
            "k_new and v_new afterwards": "unchanged" if unchanged else "changed",
        } | returned

    named = "" if base is None else f", base={base:g}"
    return Probe(f"append_rotated(cache, k_new, v_new{named}) with chunks of {', '.join(map(str, sizes))} tokens", run)


def _append_rotated(cache: Any, k_new: np.ndarray, v_new: np.ndarray, base: float = 10000.0) -> Any:
    positions = np.arange(len(cache), len(cache) + k_new.shape[1])
    return cache.append(rotate(k_new, positions, base), v_new)


def _at_positions(positions: Callable[[Any, int], np.ndarray]) -> Callable[..., Any]:
    """append_rotated at other positions than the right ones."""

    def wrong(cache: Any, k_new: np.ndarray, v_new: np.ndarray, base: float = 10000.0) -> Any:
        return cache.append(rotate(k_new, positions(cache, k_new.shape[1]), base), v_new)

    return wrong


def _values_too(cache: Any, k_new: np.ndarray, v_new: np.ndarray, base: float = 10000.0) -> Any:
    positions = np.arange(len(cache), len(cache) + k_new.shape[1])
    return cache.append(rotate(k_new, positions, base), rotate(v_new, positions, base))


def _on_read(cache: Any, k_new: np.ndarray, v_new: np.ndarray, base: float = 10000.0) -> Any:
    k, v = cache.append(k_new, v_new)
    return rotate(k, np.arange(k.shape[1]), base), v


def _rotated_in_place(cache: Any, k_new: np.ndarray, v_new: np.ndarray, base: float = 10000.0) -> Any:
    k_new[:] = rotate(k_new, np.arange(len(cache), len(cache) + k_new.shape[1]), base)
    return cache.append(k_new, v_new)


def _again_each_step(cache: Any, k_new: np.ndarray, v_new: np.ndarray, base: float = 10000.0) -> Any:
    """Rotates what the cache holds together with the new keys, and stores it all again."""
    nothing = np.zeros((k_new.shape[0], 0, k_new.shape[2]))
    k_old, v_old = cache.append(nothing, nothing)
    k = np.concatenate([k_old, k_new], axis=1)
    v = np.concatenate([v_old, v_new], axis=1)
    cache.reset()
    return cache.append(rotate(k, np.arange(k.shape[1]), base), v)


APPEND_ROTATED = Exercise(
    id="append_rotated",
    reference=_append_rotated,
    stages=[
        Stage("a first chunk is stored rotated, values as they are", [_append_in_chunks([1]), _append_in_chunks([4])]),
        Stage("a second chunk goes on where the first ended", [_append_in_chunks([2, 1]), _append_in_chunks([3, 2])]),
        Stage("uneven chunks, other bases", [_append_in_chunks([3, 1, 2, 1]), _append_in_chunks([2, 3], base=500.0)]),
        Stage("an empty chunk changes nothing", [_append_in_chunks([0, 2]), _append_in_chunks([3, 0, 1])]),
    ],
    mistakes=[
        Mistake(
            "positions_restart",
            "Positions restart at 0 in every chunk: the new keys are stored at places that earlier tokens have.",
            "When the cache holds 10 tokens, at which position does the next one stand?",
            _at_positions(lambda cache, n: np.arange(n)),
        ),
        Mistake(
            "off_by_one",
            "Every position is one too high. A uniform shift changes no output, so only the stored keys show it; "
            "a cache written here and read by other code would be wrong.",
            "At which position does the first token of a text stand?",
            _at_positions(lambda cache, n: np.arange(len(cache), len(cache) + n) + 1),
        ),
        Mistake(
            "one_position_a_chunk",
            "All tokens of a chunk get the same position, that of its first token. One token at a time hides this.",
            "In a chunk of 3 after 4 cached tokens, at which positions do the three stand?",
            _at_positions(lambda cache, n: np.full(n, len(cache))),
        ),
        Mistake(
            "never_rotated",
            "The keys are stored as they came and never rotated: no query can tell how far away a key is.",
            "What in a stored key says at which position its token stood?",
            lambda cache, k_new, v_new, base=10000.0: cache.append(k_new, v_new),
        ),
        Mistake(
            "rotated_on_read",
            "The keys are stored as they came and all of them are rotated on every read. The result is right, and the "
            "work is done again for every key in every step. Here keys are to be rotated once, before being stored.",
            "How many keys does your code rotate in the step that adds token 1,000?",
            _on_read,
        ),
        Mistake(
            "rotated_again",
            "Keys that are already in the cache are rotated again in each step, and drift further every time.",
            "How often has the key of token 0 been rotated after ten steps?",
            _again_each_step,
        ),
        Mistake(
            "values_rotated",
            "The values are rotated too. Positions belong in the scores, which compare queries with keys; a value is "
            "what is read out, and stays as it is.",
            "Which of q, k and v take part in the product that the angles are meant to change?",
            _values_too,
        ),
        Mistake(
            "base_ignored",
            "The base is not passed on: keys are always rotated with 10,000.",
            "Which base does your rotation use when the caller asks for 500?",
            lambda cache, k_new, v_new, base=10000.0: _append_rotated(cache, k_new, v_new),
        ),
        Mistake(
            "empty_chunk_returns_nothing",
            "An empty chunk comes back as it is, where everything in the cache belongs.",
            "What does cache.append return when nothing is new and 3 tokens are stored?",
            lambda cache, k_new, v_new, base=10000.0: (
                _append_rotated(cache, k_new, v_new, base) if k_new.shape[1] else (k_new, v_new)
            ),
        ),
        Mistake(
            "changes_its_input",
            "The keys that were handed in are rotated in place: the caller's array is changed.",
            "What does the caller's k_new hold after your function has returned?",
            _rotated_in_place,
        ),
    ],
)

EXERCISES = [OFFSET_MASK, ROTATE, APPEND_ROTATED]
