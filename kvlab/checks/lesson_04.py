"""Checks for lesson 04: repeating KV heads, attending without repeating them, pooling the heads of a trained model."""

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np

from kvlab.attention import attention, offset_mask, repeat_kv, softmax
from kvlab.checks.model import Exercise, Mistake, Observation, Probe, Raised, Stage, call, observe


def _array(*shape: int, dtype: Any = np.float64) -> np.ndarray:
    return np.random.default_rng(sum(i * n for i, n in enumerate(shape, 1))).standard_normal(shape).astype(dtype)


def _repeat(n_kv_heads: int, n_total: int, head_dim: int, n_heads: int) -> Probe:
    x = _array(n_kv_heads, n_total, head_dim)
    return call(f"repeat_kv(x, {n_heads}) for x of shape {x.shape}", x, n_heads, key="the repeated heads")


def _refuses(n_kv_heads: int, n_heads: int) -> Probe:
    def run(submission: Callable[..., Any]) -> Observation:
        try:
            got = submission(_array(n_kv_heads, 2, 3), n_heads)
        except ValueError:
            return {"what happens": Raised(("ValueError",))}
        return {"what happens": f"an answer of shape {getattr(observe(got), 'shape', None)}"}

    return Probe(f"repeat_kv(x, {n_heads}) for {n_kv_heads} KV heads", run)


def _group(n_heads: int, n_kv_heads: int) -> int:
    if n_heads % n_kv_heads:
        raise ValueError("not a multiple")
    return n_heads // n_kv_heads


def _asserts(x: np.ndarray, n_heads: int) -> np.ndarray:
    assert n_heads % len(x) == 0
    return np.repeat(x, n_heads // len(x), axis=0)


REPEAT_KV = Exercise(
    id="repeat_kv",
    reference=repeat_kv,
    stages=[
        Stage("one KV head serves every query head", [_repeat(1, 2, 3, 4)]),
        Stage("as many KV heads as query heads: nothing changes", [_repeat(3, 2, 4, 3)]),
        Stage("neighbours share a KV head", [_repeat(2, 1, 1, 4), _repeat(2, 3, 5, 6), _repeat(3, 2, 4, 6)]),
        Stage("an empty cache", [_repeat(2, 0, 3, 4)]),
        Stage("a number of heads that is no multiple is refused", [_refuses(2, 5), _refuses(4, 2)]),
    ],
    mistakes=[
        Mistake(
            "tile_order",
            "The heads come in tile order, [K1 K2 K1 K2] where [K1 K1 K2 K2] belongs. The shape is right, and a cached "
            "run agrees with an uncached one that makes the same mistake.",
            "Which KV head does query head 1 read when 4 query heads share 2 KV heads?",
            lambda x, n_heads: np.tile(x, (_group(n_heads, len(x)), 1, 1)),
        ),
        Mistake(
            "first_head_for_all",
            "Every query head gets KV head 0: the other KV heads are never read.",
            "Which query heads read KV head 1?",
            lambda x, n_heads: np.repeat(x[:1], _group(n_heads, len(x)) * len(x), axis=0),
        ),
        Mistake(
            "repeated_tokens",
            "The tokens are repeated, where the heads should be.",
            "Which of the three axes counts heads?",
            lambda x, n_heads: np.repeat(x, _group(n_heads, len(x)), axis=1),
        ),
        Mistake(
            "repeated_channels",
            "The channels are repeated, where the heads should be.",
            "Which of the three axes counts heads?",
            lambda x, n_heads: np.repeat(x, _group(n_heads, len(x)), axis=2),
        ),
        Mistake(
            "n_heads_copies_each",
            "Each KV head is repeated n_heads times, where it serves only its group.",
            "How many query heads share one of 2 KV heads when there are 6?",
            lambda x, n_heads: np.repeat(x, _group(n_heads, len(x)) * len(x), axis=0),
        ),
        Mistake(
            "not_repeated",
            "The KV heads come back as they are: there are fewer of them than query heads.",
            "How many heads should the result have?",
            lambda x, n_heads: x[: _group(n_heads, len(x)) * len(x)],
        ),
        Mistake(
            "rounds_silently",
            "A number of heads that is no multiple is rounded down without a word.",
            "How should 5 query heads share 2 KV heads?",
            lambda x, n_heads: np.repeat(x, n_heads // len(x), axis=0),
        ),
        Mistake(
            "cuts_to_size",
            "A number of heads that is no multiple is met by repeating too often and cutting: unequal groups.",
            "How should 5 query heads share 2 KV heads?",
            lambda x, n_heads: np.repeat(x, -(-n_heads // len(x)), axis=0)[:n_heads],
        ),
        Mistake(
            "assertion",
            "The refusal is an AssertionError. The exercise asks for a ValueError; asserts vanish under python -O.",
            "Which exception says that an argument has a value that cannot be used?",
            _asserts,
        ),
    ],
)


def _attend(
    n_heads: int, n_kv_heads: int, n_new: int, n_total: int, head_dim: int, dtype: Any = np.float64, scale: float = 1.0
) -> Probe:
    q, k = (scale * _array(n_heads, n_new, head_dim)).astype(dtype), _array(n_kv_heads, n_total, head_dim, dtype=dtype)
    v = _array(n_kv_heads, n_total + 1, head_dim, dtype=dtype)[:, 1:]
    kind = "" if dtype is np.float64 else f" of {np.dtype(dtype)}"
    kind += "" if scale == 1.0 else ", scores near 1,000"
    describe = f"grouped_attention(q, k, v){kind}: q of shape {q.shape}, k and v of shape {k.shape}"
    return call(describe, q, k, v, tolerance=1e-9 if dtype is np.float64 else 1e-4, key="the output")


def _memory(submission: Callable[..., Any]) -> Observation:
    """Whether memory of the size of a copy for every query head was taken: 8 heads x 1,024 tokens x 32, 2.1 MB."""
    q, k, v = _array(8, 1, 32), _array(2, 1024, 32), _array(2, 1024, 32)
    copy_bytes = 8 * 1024 * 32 * 8
    already = tracemalloc.is_tracing()
    if not already:
        tracemalloc.start()
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    try:
        submission(q, k, v)
        taken = tracemalloc.get_traced_memory()[1] - before
    finally:
        if not already:
            tracemalloc.stop()
    return {"a copy of k or v for every query head": "made" if taken > 0.75 * copy_bytes else "not made"}


def _repeated(order: Callable[[np.ndarray, int], np.ndarray]) -> Callable[..., np.ndarray]:
    return lambda q, k, v: attention(q, order(k, len(q)), order(v, len(q)))


def _indices(index: Callable[[int, int, int], int]) -> Callable[..., np.ndarray]:
    """Attention head by head, with KV head index(h, n_heads, n_kv_heads), and no copy of k or v."""

    def wrong(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        n_heads, n_kv_heads = len(q), len(k)
        where = [index(h, n_heads, n_kv_heads) for h in range(n_heads)]
        return np.stack([attention(q[h][None], k[g][None], v[g][None])[0] for h, g in enumerate(where)])

    return wrong


def _keys_right_values_tiled(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    group, n_kv_heads = len(q) // len(k), len(k)
    pairs = [(k[h // group], v[h % n_kv_heads]) for h in range(len(q))]
    return np.stack([attention(q[h][None], a[None], b[None])[0] for h, (a, b) in enumerate(pairs)])


def _masked(mask: Callable[[int, int], np.ndarray]) -> Callable[..., np.ndarray]:
    return lambda q, k, v: attention(q, k, v, mask=mask(q.shape[1], k.shape[1]))


def _only_equal(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    scores = q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1])
    return softmax(np.where(offset_mask(q.shape[1], k.shape[1]), scores, -np.inf)) @ v if q.size else scores @ v


def _no_maximum(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    group = len(q) // len(k)
    grouped = q.reshape(len(k), group, *q.shape[1:])
    scores = grouped @ k[:, None].swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    weights = np.where(offset_mask(q.shape[1], k.shape[1]), np.exp(scores), 0)
    return (weights / weights.sum(axis=-1, keepdims=True) @ v[:, None]).reshape(q.shape)


def _averaged_queries(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    group = len(q) // len(k)
    pooled = q.reshape(len(k), group, *q.shape[1:]).mean(axis=1)
    return np.repeat(attention(pooled, k, v), group, axis=0)


GROUPED_ATTENTION = Exercise(
    id="grouped_attention",
    reference=lambda q, k, v: attention(q, k, v),
    stages=[
        Stage("as many KV heads as query heads", [_attend(3, 3, 1, 1, 4), _attend(3, 3, 2, 5, 4)]),
        Stage("one KV head for all query heads", [_attend(4, 1, 1, 5, 3)]),
        Stage("groups of query heads", [_attend(4, 2, 1, 3, 5), _attend(6, 2, 1, 7, 4)]),
        Stage("a chunk of new tokens over a cache", [_attend(4, 2, 3, 7, 5), _attend(6, 3, 5, 5, 4)]),
        Stage("scores near 1,000 stay finite", [_attend(4, 2, 2, 5, 4, scale=700.0)]),
        Stage("an empty chunk, and float32", [_attend(4, 2, 0, 3, 5), _attend(6, 2, 2, 5, 8, np.float32)]),
        Stage(
            "no copy of k or v for every query head",
            [Probe("grouped_attention of 8 query heads on 2 KV heads of 1,024 tokens, memory counted", _memory)],
        ),
    ],
    mistakes=[
        Mistake(
            "tile_order",
            "Query head h reads KV head h modulo n_kv_heads, tile order. Neighbouring query heads share a KV head; a "
            "cached run cannot show this, since it agrees with itself.",
            "Which KV head does query head 1 read when 4 query heads share 2 KV heads?",
            _indices(lambda h, n_heads, n_kv_heads: h % n_kv_heads),
        ),
        Mistake(
            "keys_right_values_tiled",
            "Keys are shared by neighbouring query heads, values in tile order: they do not match.",
            "Do the keys and the values that query head 1 reads come from the same KV head?",
            _keys_right_values_tiled,
        ),
        Mistake(
            "first_head_for_all",
            "Every query head reads KV head 0.",
            "Which query heads read KV head 1?",
            _indices(lambda h, n_heads, n_kv_heads: 0),
        ),
        Mistake(
            "last_head_for_all",
            "Every query head past the number of KV heads reads the last one: the index is cut off, not divided.",
            "Which KV head does query head 2 read when 4 query heads share 2 KV heads?",
            _indices(lambda h, n_heads, n_kv_heads: min(h, n_kv_heads - 1)),
        ),
        Mistake(
            "repeated_in_memory",
            "The answer is right, and k and v were copied for every query head on the way: the memory that grouped "
            "queries save is taken again in each step.",
            "How many bytes does your code take beside the cache for 8 query heads on 2 KV heads?",
            _repeated(repeat_kv),
        ),
        Mistake(
            "tiled_in_memory",
            "The KV heads are copied for every query head, and in tile order: [K1 K2 K1 K2], not [K1 K1 K2 K2].",
            "Which KV head does query head 1 read when 4 query heads share 2 KV heads?",
            _repeated(lambda x, n: np.tile(x, (n // len(x), 1, 1))),
        ),
        Mistake(
            "top_left_triangle",
            "The mask hangs from the top-left corner: a new token sees the beginning of the cache and not itself.",
            "With 7 tokens in all of which 3 are new, at which position does the first new token stand?",
            _masked(lambda n_new, n_total: np.tril(np.ones((n_new, n_total), bool))),
        ),
        Mistake(
            "no_mask",
            "Nothing is hidden: within a chunk, tokens see those that come after them. One new token hides it.",
            "In a chunk of 3 after 4 cached tokens, may the first see the third?",
            _masked(lambda n_new, n_total: np.ones((n_new, n_total), bool)),
        ),
        Mistake(
            "no_scale",
            "The scores are not divided by sqrt(head_dim).",
            "How does the variance of a dot product grow with the number of its terms?",
            lambda q, k, v: attention(q * np.sqrt(q.shape[-1]), k, v),
        ),
        Mistake(
            "only_equal_heads",
            "This works only when there are as many KV heads as query heads.",
            "What shapes do q and k have when 6 query heads share 2 KV heads?",
            _only_equal,
        ),
        Mistake(
            "no_maximum",
            "Nothing is subtracted before exp: it overflows to inf for scores near 1,000, and inf / inf is nan.",
            "What is np.exp(1000.0)?",
            _no_maximum,
        ),
        Mistake(
            "queries_averaged",
            "The queries of a group are averaged: its heads all give the same answer.",
            "What do heads of one group share, the question or what they look it up in?",
            _averaged_queries,
        ),
    ],
)


def _pool(d_model: int, n_heads: int, n_kv_heads: int, head_dim: int) -> Probe:
    w = _array(d_model, n_heads * head_dim)
    describe = f"pool_kv_heads(w, {n_heads}, {n_kv_heads}) for w of shape {w.shape}, heads of width {head_dim}"
    return call(describe, w, n_heads, n_kv_heads, key="the pooled weight")


def _heads(w: np.ndarray, n_heads: int, n_kv_heads: int) -> np.ndarray:
    """(d_model, n_kv_heads, group, head_dim), neighbouring heads in a group."""
    return w.reshape(len(w), n_kv_heads, n_heads // n_kv_heads, w.shape[1] // n_heads)


def _pool_kv_heads(w: np.ndarray, n_heads: int, n_kv_heads: int) -> np.ndarray:
    return _heads(w, n_heads, n_kv_heads).mean(axis=2).reshape(len(w), -1)


def _strided(w: np.ndarray, n_heads: int, n_kv_heads: int) -> np.ndarray:
    apart = w.reshape(len(w), n_heads // n_kv_heads, n_kv_heads, w.shape[1] // n_heads)
    return apart.mean(axis=1).reshape(len(w), -1)


def _channels_apart(w: np.ndarray, n_heads: int, n_kv_heads: int) -> np.ndarray:
    """Takes the columns as (head_dim, heads)."""
    cut = w.reshape(len(w), w.shape[1] // n_heads, n_kv_heads, n_heads // n_kv_heads)
    return cut.mean(axis=3).reshape(len(w), -1)


def _along_d_model(w: np.ndarray, n_heads: int, n_kv_heads: int) -> np.ndarray:
    group = n_heads // n_kv_heads
    rows = len(w) // group
    return w[: rows * group].reshape(rows, group, w.shape[1]).mean(axis=1)


POOL_KV_HEADS = Exercise(
    id="pool_kv_heads",
    reference=_pool_kv_heads,
    stages=[
        Stage("two heads become one", [_pool(1, 2, 1, 1), _pool(5, 2, 1, 3)]),
        Stage("as many KV heads as heads: nothing changes", [_pool(5, 4, 4, 3)]),
        Stage("neighbouring heads form a group", [_pool(5, 4, 2, 1), _pool(5, 6, 3, 4), _pool(7, 6, 2, 3)]),
    ],
    mistakes=[
        Mistake(
            "strided_groups",
            "Heads that stand n_kv_heads apart are averaged. A group is made of neighbours.",
            "Which query heads read KV head 0 when 4 share 2?",
            _strided,
        ),
        Mistake(
            "sum",
            "The heads of a group are added up; their mean keeps the size of the keys and values.",
            "How large would a key be if two equal heads were pooled your way?",
            lambda w, n_heads, n_kv_heads: _heads(w, n_heads, n_kv_heads).sum(axis=2).reshape(len(w), -1),
        ),
        Mistake(
            "first_of_each_group",
            "The first head of each group is kept and the others are dropped. The GQA paper compares this with "
            "the mean and finds the mean better.",
            "What is left in your result of the second head of a group?",
            lambda w, n_heads, n_kv_heads: _heads(w, n_heads, n_kv_heads)[:, :, 0].reshape(len(w), -1),
        ),
        Mistake(
            "first_heads_only",
            "The first n_kv_heads heads are kept: later groups are not represented at all.",
            "Which of the old heads enter the last of your new ones?",
            lambda w, n_heads, n_kv_heads: w[:, : n_kv_heads * w.shape[1] // n_heads].copy(),
        ),
        Mistake(
            "channels_before_heads",
            "The columns are cut as (head_dim, heads), so that neighbouring columns are averaged: the channels "
            "of one head are mixed.",
            "Which two columns of w hold channel 0 of heads 0 and 1?",
            _channels_apart,
        ),
        Mistake(
            "along_d_model",
            "Rows are averaged: the input width shrinks, and the heads are all still there.",
            "Which axis of w runs over the heads?",
            _along_d_model,
        ),
        Mistake(
            "one_mean_for_all",
            "All heads are averaged into one, and that one is used for every group.",
            "How many different heads should the result have?",
            lambda w, n_heads, n_kv_heads: np.tile(_pool_kv_heads(w, n_heads, 1), (1, n_kv_heads)),
        ),
    ],
)

EXERCISES = [REPEAT_KV, GROUPED_ATTENTION, POOL_KV_HEADS]
