"""Checks for lesson 06: the cache in PyTorch, an attention layer with it, a whole model with it, and the loop."""

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from kvlab.checks.model import Exercise, Malformed, Mistake, Observation, Probe, Raised, Stage, observe, pair
from kvlab.decoder import DecoderConfig, TinyDecoder
from kvlab.torch_attention import merge_heads, offset_mask, split_heads
from kvlab.torch_caches import StaticCache, update_cache
from kvlab.torch_decoder import CachedAttention, TorchDecoder
from kvlab.torch_decoder import add_cache as add_cache_to
from kvlab.torch_decoder import generate as generate_with

BATCH, N_KV_HEADS, HEAD_DIM = 2, 3, 5  # of the caches below: no two axes are equal


def _normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    values = np.random.default_rng(seed + sum(shape)).standard_normal(shape)
    return torch.from_numpy(values).to(dtype)


def _rows(n_tokens: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    shape = (BATCH, N_KV_HEADS, n_tokens, HEAD_DIM)
    return _normal(*shape, seed=seed, dtype=dtype), _normal(*shape, seed=seed + 100, dtype=dtype)


def _seen(k: Any, v: Any, *, when: str = "") -> Observation:
    return {f"k{when}": observe(k), f"v{when}": observe(v)}


def _chunks(sizes: Sequence[int]) -> str:
    return ("one chunk of " if len(sizes) == 1 else "chunks of ") + ", ".join(map(str, sizes)) + " tokens"


def _updates(*sizes: int) -> Probe:
    def run(submission: Callable[..., Any]) -> Observation:
        past: Any = None
        seen: Observation = {}
        at = 0
        for i, n_new in enumerate(sizes):
            k, v = past = pair(submission(past, *_rows(n_new, seed=i)), "update_cache")
            at += n_new
            seen |= _seen(k, v, when=f" after {at} tokens")
        return seen

    return Probe(f"update_cache, {_chunks(sizes)}", run, 1e-6)


def _old_pair_stays(submission: Callable[..., Any]) -> Observation:
    k_old, v_old = past = _rows(4)
    submission(past, *_rows(1, seed=1))
    return _seen(k_old, v_old, when=" of the old pair afterwards") | {"tensors in the old pair": len(past)}


def _inputs_stay(submission: Callable[..., Any]) -> Observation:
    k_new, v_new = _rows(2)
    submission(_rows(4, seed=1), k_new, v_new)
    return _seen(k_new, v_new, when="_new afterwards")


def _update_dtype(submission: Callable[..., Any]) -> Observation:
    past = pair(submission(_rows(3, dtype=torch.bfloat16), *_rows(1, dtype=torch.bfloat16)), "update_cache")
    return {"the dtype": tuple(str(getattr(t, "dtype", type(t).__name__)) for t in past)}


def _joined(dim: int) -> Callable[..., Any]:
    def wrong(past: Any, k: torch.Tensor, v: torch.Tensor) -> Any:
        return (k, v) if past is None else (torch.cat([past[0], k], dim), torch.cat([past[1], v], dim))

    return wrong


def _needs_past(past: Any, k: torch.Tensor, v: torch.Tensor) -> Any:
    return torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)


def _empty_start(past: Any, k: torch.Tensor, v: torch.Tensor) -> Any:
    return past if k.shape[2] == 0 else update_cache(past, k, v)


def _newest_first(past: Any, k: torch.Tensor, v: torch.Tensor) -> Any:
    return (k, v) if past is None else (torch.cat([k, past[0]], dim=2), torch.cat([v, past[1]], dim=2))


def _grown_in_place(past: Any, k: torch.Tensor, v: torch.Tensor) -> Any:
    if past is not None:
        for old, new in zip(past, (k, v), strict=True):
            old.set_(torch.cat([old, new], dim=2))
        return past
    return k, v


def _last_overwritten(past: Any, k: torch.Tensor, v: torch.Tensor) -> Any:
    """Writes the new rows over the newest ones of the old pair."""
    if past is None:
        return k, v
    n_new = min(k.shape[2], past[0].shape[2])
    for old, new in zip(past, (k, v), strict=True):
        old[:, :, old.shape[2] - n_new :] = new[:, :, :n_new]
    return past


UPDATE_CACHE = Exercise(
    id="update_cache",
    reference=update_cache,
    stages=[
        Stage("with no past, the new rows are all there is", [_updates(1), _updates(3)]),
        Stage("new rows follow the old ones along the token axis", [_updates(4, 1), _updates(2, 2), _updates(2, 3, 1)]),
        Stage("an empty chunk adds nothing", [_updates(4, 0), _updates(0, 2)]),
        Stage(
            "the old pair and the new rows stay as they were",
            [
                Probe("update_cache with a past of 4 tokens, then look at that past", _old_pair_stays, 1e-6),
                Probe("update_cache, then look at k and v", _inputs_stay, 1e-6),
            ],
        ),
        Stage("the dtype stays", [Probe("update_cache in bfloat16", _update_dtype)]),
    ],
    mistakes=[
        Mistake(
            "joined_along_heads",
            "The tensors are joined along axis 1, the KV heads: the layer seems to get more heads with each token.",
            "Which axis of (batch, n_kv_heads, n_total, head_dim) counts tokens?",
            _joined(1),
        ),
        Mistake(
            "joined_along_channels",
            "The tensors are joined along the last axis: the rows grow wider, where there should be more of them.",
            "Which axis of (batch, n_kv_heads, n_total, head_dim) counts tokens?",
            _joined(-1),
        ),
        Mistake(
            "joined_along_batch",
            "The tensors are joined along axis 0, the batch: each step seems to bring new sequences.",
            "Which axis of (batch, n_kv_heads, n_total, head_dim) counts tokens?",
            _joined(0),
        ),
        Mistake(
            "past_ignored",
            "The past is not used: only the new rows come back.",
            "How many rows should come back for 1 new token after 4?",
            lambda past, k, v: (k, v),
        ),
        Mistake(
            "past_required",
            "A past of None raises: before the first token there is no pair to unpack.",
            "What is handed in as past in the very first call?",
            _needs_past,
        ),
        Mistake(
            "nothing_from_nothing",
            "When nothing comes in, the past is handed back as it is: at the start that is None, and no pair.",
            "What should come back when the very first chunk is empty?",
            _empty_start,
        ),
        Mistake(
            "newest_first",
            "New rows are put in front of the old ones. The order is that of the positions, oldest first.",
            "Which row of k should belong to the first token of the text?",
            _newest_first,
        ),
        Mistake(
            "exchanged",
            "Keys and values come back exchanged.",
            "In which order does update_cache return its two tensors?",
            lambda past, k, v: update_cache(past, k, v)[::-1],
        ),
        Mistake(
            "keys_as_values",
            "The keys are kept as values too: v is never looked at.",
            "Which of the arguments does your second tensor come from?",
            lambda past, k, v: update_cache(past, k, k),
        ),
        Mistake(
            "grown_in_place",
            "The old pair's own tensors are enlarged: whoever still holds them sees them change.",
            "What does a caller who kept the old pair hold after your function has returned?",
            _grown_in_place,
        ),
        Mistake(
            "newest_overwritten",
            "The new rows are written over the newest old ones: the number of tokens never grows.",
            "How many rows should come back for 1 new token after 4?",
            _last_overwritten,
        ),
    ],
)

D_MODEL, N_HEADS, LAYER_KV_HEADS, WIDTH = 10, 6, 2, 4
SHAPES = {
    "wq": (N_HEADS * WIDTH, D_MODEL),
    "wk": (LAYER_KV_HEADS * WIDTH, D_MODEL),
    "wv": (LAYER_KV_HEADS * WIDTH, D_MODEL),
    "wo": (D_MODEL, N_HEADS * WIDTH),
}


def _layer(make: Any) -> Any:
    """The learner's layer, with this check's own weights in it."""
    layer = make(D_MODEL, N_HEADS, LAYER_KV_HEADS, WIDTH)
    if not isinstance(layer, nn.Module):
        raise Malformed("CachedAttention: expected a torch.nn.Module; does the class derive from nn.Module?")
    for i, (name, shape) in enumerate(SHAPES.items()):
        weight = getattr(getattr(layer, name, None), "weight", None)
        if not isinstance(weight, torch.Tensor):
            raise Malformed(f"CachedAttention: the layer has no nn.Linear called {name}")
        if tuple(weight.shape) != shape:
            raise Malformed(f"CachedAttention: {name}.weight has shape {tuple(weight.shape)}, expected {shape}")
        with torch.no_grad():
            weight.copy_(_normal(*shape, seed=i) / 2)
    return layer.eval()


def _parameters(make: Any) -> Observation:
    layer = _layer(make)
    names = sorted(name for name, _ in layer.named_parameters())
    return {"the layer's parameters": tuple(names)}


def _forward(layer: Any, x: torch.Tensor, *cache: Any) -> tuple[Any, tuple[Any, Any]]:
    with torch.no_grad():
        out, kept = pair(layer(x, *cache), "forward")
    return out, pair(kept, "the cache that forward returns")


def _layer_steps(*sizes: int) -> Probe:
    def run(make: Any) -> Observation:
        layer = _layer(make)
        x = _normal(3, sum(sizes), D_MODEL, seed=7)
        seen: Observation = {}
        at = 0
        cache: Any = None
        for n_new in sizes:
            chunk = x[:, at : at + n_new]
            out, cache = _forward(layer, chunk) if cache is None else _forward(layer, chunk, cache)
            at += n_new
            k, v = cache
            seen |= {f"out for tokens up to {at}": observe(out)} | _seen(k, v, when=f" cached after {at}")
        return seen

    return Probe(f"forward on {_chunks(sizes)}, batch 3", run, 1e-4)


def _cache_by_name(make: Any) -> Observation:
    layer = _layer(make)
    x = _normal(1, 3, D_MODEL)
    _, cache = _forward(layer, x[:, :2])
    with torch.no_grad():
        out, _ = pair(layer(x[:, 2:], cache=cache), "forward")
        again, _ = pair(layer(x[:, 2:], cache=cache), "forward")
    return {"out": observe(out), "out for the same cache again": observe(again)} | _seen(
        *cache, when=" of the cache handed in, afterwards"
    )


class _Layer(nn.Module):
    """A right layer that the mistakes below spoil in one place each."""

    bias = False

    def __init__(self, d_model: int, n_heads: int, n_kv_heads: int, head_dim: int) -> None:
        super().__init__()
        self.n_heads, self.n_kv_heads = n_heads, n_kv_heads
        self.wq = nn.Linear(d_model, n_heads * head_dim, bias=self.bias)
        self.wk = nn.Linear(d_model, n_kv_heads * head_dim, bias=self.bias)
        self.wv = nn.Linear(d_model, n_kv_heads * head_dim, bias=self.bias)
        self.wo = nn.Linear(n_heads * head_dim, d_model, bias=self.bias)

    def split(self, x: torch.Tensor, n_heads: int) -> torch.Tensor:
        return split_heads(x, n_heads)

    def merge(self, x: torch.Tensor) -> torch.Tensor:
        return merge_heads(x)

    def cached(self, cache: Any, k: torch.Tensor, v: torch.Tensor) -> Any:
        return update_cache(cache, k, v)

    def mask(self, n_new: int, n_total: int) -> torch.Tensor:
        return offset_mask(n_new, n_total)

    def repeat(self, x: torch.Tensor) -> torch.Tensor:
        return x.repeat_interleave(self.n_heads // x.shape[1], dim=1)

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        mask = self.mask(q.shape[2], k.shape[2])
        return scaled_dot_product_attention(q, self.repeat(k), self.repeat(v), attn_mask=mask)

    def forward(self, x: torch.Tensor, cache: Any = None) -> Any:
        q = self.split(self.wq(x), self.n_heads)
        k, v = self.split(self.wk(x), self.n_kv_heads), self.split(self.wv(x), self.n_kv_heads)
        k, v = self.cached(cache, k, v)
        return self.wo(self.merge(self.attend(q, k, v))), (k, v)


class _TopLeft(_Layer):
    def mask(self, n_new: int, n_total: int) -> torch.Tensor:
        return torch.ones(n_new, n_total, dtype=torch.bool).tril()


class _NoMask(_Layer):
    def mask(self, n_new: int, n_total: int) -> torch.Tensor:
        return torch.ones(n_new, n_total, dtype=torch.bool)


class _NoMaskOverCache(_Layer):
    def mask(self, n_new: int, n_total: int) -> torch.Tensor:
        return torch.ones(n_new, n_total, dtype=torch.bool).tril(0 if n_new == n_total else n_total)


class _CacheIgnored(_Layer):
    def cached(self, cache: Any, k: torch.Tensor, v: torch.Tensor) -> Any:
        return k, v


class _AttendsToNewOnly(_Layer):
    """Keeps a right cache and does not read it."""

    def forward(self, x: torch.Tensor, cache: Any = None) -> Any:
        q = self.split(self.wq(x), self.n_heads)
        k, v = self.split(self.wk(x), self.n_kv_heads), self.split(self.wv(x), self.n_kv_heads)
        return self.wo(self.merge(self.attend(q, k, v))), self.cached(cache, k, v)


class _ReturnsOldCache(_Layer):
    def forward(self, x: torch.Tensor, cache: Any = None) -> Any:
        out, kept = super().forward(x, cache)
        return out, kept if cache is None else cache


class _RepeatedInCache(_Layer):
    def forward(self, x: torch.Tensor, cache: Any = None) -> Any:
        q = self.split(self.wq(x), self.n_heads)
        k, v = self.split(self.wk(x), self.n_kv_heads), self.split(self.wv(x), self.n_kv_heads)
        k, v = self.cached(cache, self.repeat(k), self.repeat(v))
        return self.wo(self.merge(self.attend(q, k, v))), (k, v)


class _Tiled(_Layer):
    def repeat(self, x: torch.Tensor) -> torch.Tensor:
        return x.repeat(1, self.n_heads // x.shape[1], 1, 1)


class _NoOutput(_Layer):
    def forward(self, x: torch.Tensor, cache: Any = None) -> Any:
        q = self.split(self.wq(x), self.n_heads)
        k, v = self.split(self.wk(x), self.n_kv_heads), self.split(self.wv(x), self.n_kv_heads)
        k, v = self.cached(cache, k, v)
        return self.merge(self.attend(q, k, v)), (k, v)


class _NoScale(_Layer):
    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return super().attend(q * q.shape[-1] ** 0.5, k, v)


class _WithBias(_Layer):
    bias = True


class _SplitByReshape(_Layer):
    def split(self, x: torch.Tensor, n_heads: int) -> torch.Tensor:
        return x.reshape(x.shape[0], n_heads, x.shape[1], x.shape[2] // n_heads)


class _MergedByReshape(_Layer):
    def merge(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(x.shape[0], x.shape[2], x.shape[1] * x.shape[3])


class _JoinedAlongHeads(_Layer):
    def cached(self, cache: Any, k: torch.Tensor, v: torch.Tensor) -> Any:
        return _joined(1)(cache, k, v)


class _KeepsItsOwn(_Layer):
    """Remembers its cache itself, whatever is handed in."""

    own: Any = None

    def cached(self, cache: Any, k: torch.Tensor, v: torch.Tensor) -> Any:
        self.own = update_cache(self.own, k, v)
        return self.own


CACHED_ATTENTION = Exercise(
    id="CachedAttention",
    is_class=True,
    reference=lambda d_model, n_heads, n_kv_heads, head_dim: CachedAttention(d_model, n_heads, n_kv_heads, head_dim),
    stages=[
        Stage("four matrices without bias", [Probe("CachedAttention(10, 6, 2, 4)", _parameters)]),
        Stage("one token, and a prompt", [_layer_steps(1), _layer_steps(5)]),
        Stage("one token over a cache", [_layer_steps(1, 1), _layer_steps(5, 1)]),
        Stage("a chunk over a cache", [_layer_steps(4, 3), _layer_steps(2, 3, 1)]),
        Stage("an empty chunk", [_layer_steps(3, 0)]),
        Stage(
            "the cache that is handed in decides, and stays as it was",
            [Probe("forward twice with the same cache", _cache_by_name, 1e-4)],
        ),
    ],
    mistakes=[
        Mistake(
            "top_left_triangle",
            "The mask hangs from the top-left corner, as SDPA's is_causal=True does: one query over a long cache sees "
            "the first key alone, and the output is the first value.",
            "Which keys does is_causal=True leave to one query over 5 keys?",
            _TopLeft,
        ),
        Mistake(
            "no_mask",
            "Nothing is hidden: in a prompt, tokens see those that come after them.",
            "In a prompt of 5 tokens, which keys may the first one see?",
            _NoMask,
        ),
        Mistake(
            "no_mask_over_a_cache",
            "The mask is causal only while there is no cache: a later chunk sees its own future.",
            "In a chunk of 3 after 4 cached tokens, may the first see the third?",
            _NoMaskOverCache,
        ),
        Mistake(
            "cache_ignored",
            "The cache that is handed in is not used: each call is a text of its own.",
            "What does your forward do with its second argument?",
            _CacheIgnored,
        ),
        Mistake(
            "attends_to_new_only",
            "The cache is kept and returned, and attention looks at the new rows only.",
            "Over which keys does your attention run, those just projected or those that the cache returns?",
            _AttendsToNewOnly,
        ),
        Mistake(
            "returns_the_old_cache",
            "The cache that was handed in comes back, without the new tokens.",
            "How many tokens does the cache that you return hold?",
            _ReturnsOldCache,
        ),
        Mistake(
            "repeated_before_caching",
            "The KV heads are repeated before they are cached: the right answer for three times the memory.",
            "How many heads should the cached keys of a layer with 2 KV heads have?",
            _RepeatedInCache,
        ),
        Mistake(
            "tile_order",
            "The KV heads are shared in tile order: repeat where repeat_interleave belongs. A cached run agrees with "
            "an uncached one that makes the same mistake.",
            "Which KV head does query head 1 read when 6 query heads share 2 KV heads?",
            _Tiled,
        ),
        Mistake(
            "no_output_projection",
            "wo is never used: what comes back is the heads side by side.",
            "How wide is your output, and how wide is x?",
            _NoOutput,
        ),
        Mistake(
            "no_scale",
            "The scores are not divided by sqrt(head_dim).",
            "How does the variance of a dot product grow with the number of its terms?",
            _NoScale,
        ),
        Mistake(
            "with_bias",
            "The matrices have a bias, nn.Linear's default. The model's have none.",
            "What does nn.Linear add to its product unless it is told otherwise?",
            _WithBias,
        ),
        Mistake(
            "split_by_reshape",
            "(batch, n, heads * head_dim) is reshaped straight to (batch, heads, n, head_dim): rows of different "
            "tokens mix. A single token hides it.",
            "After your reshape, which token does the second row of head 0 come from?",
            _SplitByReshape,
        ),
        Mistake(
            "merged_by_reshape",
            "(batch, heads, n, head_dim) is reshaped straight to (batch, n, heads * head_dim): the tokens' rows mix. "
            "A single token hides it.",
            "Which axis must come before the heads so that one token's heads can be joined?",
            _MergedByReshape,
        ),
        Mistake(
            "joined_along_heads",
            "The cache grows along the head axis.",
            "Which axis of (batch, n_kv_heads, n_total, head_dim) counts tokens?",
            _JoinedAlongHeads,
        ),
        Mistake(
            "keeps_its_own_cache",
            "The layer remembers a cache of its own, whatever is handed in: a second text goes on after the first.",
            "What does your layer still hold when a new text begins with cache=None?",
            _KeepsItsOwn,
        ),
    ],
)

MAX_LEN = 7


def _static(make: Any) -> Any:
    return make(BATCH, N_KV_HEADS, MAX_LEN, HEAD_DIM)


def _update(cache: Any, k: torch.Tensor, v: torch.Tensor) -> tuple[Any, Any]:
    return pair(cache.update(k, v), "update")


def _static_steps(*sizes: int) -> Probe:
    def run(make: Any) -> Observation:
        cache, at = _static(make), 0
        seen: Observation = {}
        for i, n_new in enumerate(sizes):
            k_all, v_all = _update(cache, *_rows(n_new, seed=i))
            at += n_new
            seen |= _seen(k_all, v_all, when=f" after {at} tokens") | {f"len after {at}": len(cache)}
        return seen

    return Probe(f"StaticCache of {MAX_LEN} slots, {_chunks(sizes)}", run, 1e-6)


def _memory(tensors: Sequence[Any]) -> list[bytes]:
    """All bytes of the storage behind some tensors, slots that no view shows included."""
    if not all(isinstance(t, torch.Tensor) for t in tensors):
        raise Malformed("update: expected two tensors")
    return [bytes(t.untyped_storage()) for t in tensors]


def _one_too_many(filled: int, more: int) -> Probe:
    """What is refused, and that nothing was written: the length and the rows, looked at by an empty update."""

    def run(make: Any) -> Observation:
        cache = _static(make)
        held = _update(cache, *_rows(filled))
        before = _memory(held)
        try:
            got = cache.update(*_rows(more, seed=1))
        except ValueError:
            said: Any = Raised(("ValueError",))
        except Exception as error:
            said = Raised((type(error).__name__,))
        else:
            said = f"an answer of type {type(got).__name__}"
        k_all, v_all = _update(cache, *_rows(0))
        written = "nothing" if _memory(held) == before else "something"
        after = {"len afterwards": len(cache)} | _seen(k_all, v_all, when=" afterwards")
        return {f"update with {more} tokens more": said, "written to the buffers": written} | after

    return Probe(f"StaticCache of {MAX_LEN} slots, {filled} filled, {more} more", run, 1e-6)


def _reset_and_rerun(make: Any) -> Observation:
    cache = _static(make)
    _update(cache, *_rows(5))
    cache.reset()
    seen = {"len after reset": len(cache)}
    k_all, v_all = _update(cache, *_rows(2, seed=1))
    seen |= _seen(k_all, v_all, when=" of the second text") | {"len of the second text": len(cache)}
    _update(cache, *_rows(MAX_LEN - 2, seed=2))
    return seen | {"len when filled again": len(cache)}


def _one_storage(make: Any) -> Observation:
    """Whether every tensor handed out looks at the same memory, reset included. All are kept, so none is reused."""
    cache = _static(make)
    kept = [_update(cache, *_rows(n, seed=n)) for n in (2, 1, 3)]
    cache.reset()
    kept.append(_update(cache, *_rows(1)))
    wanted = [all(isinstance(t, torch.Tensor) for t in two) for two in kept]
    if not all(wanted):
        raise Malformed("update: expected two tensors")
    keys, values = ({two[i].untyped_storage().data_ptr() for two in kept} for i in (0, 1))
    return {"memory areas that the keys were in": len(keys), "memory areas that the values were in": len(values)}


def _static_inputs(make: Any) -> Observation:
    cache = _static(make)
    k, v = _rows(3)
    _update(cache, k, v)
    before = k.clone()
    k.fill_(7.0)
    v.fill_(7.0)
    k_all, v_all = _update(cache, *_rows(1, seed=1))
    return _seen(k_all, v_all) | {"the first key that was given": observe(before[0, 0, 0])}


def _two_static(make: Any) -> Observation:
    first, second = _static(make), _static(make)
    _update(first, *_rows(3))
    k_second, v_second = _update(second, *_rows(2, seed=1))
    k_first, _ = _update(first, *_rows(1, seed=2))
    return _seen(k_second, v_second, when=" of the second cache") | {"k of the first cache": observe(k_first)}


def _static_zeros(make: Any) -> Observation:
    cache = _static(make)
    zeros = torch.zeros(BATCH, N_KV_HEADS, 2, HEAD_DIM)
    _update(cache, zeros, zeros.clone())
    k_all, _ = _update(cache, *_rows(1))
    return {"k after 2 tokens of zeros and 1 more": observe(k_all), "len": len(cache)}


def _static_dtype(make: Any) -> Observation:
    k_all, v_all = _update(_static(make), *_rows(2))
    return {"the dtype": tuple(str(getattr(t, "dtype", type(t).__name__)) for t in (k_all, v_all))}


class _Static:
    """A right cache that the mistakes below spoil in one place each."""

    dtype = torch.float32

    def __init__(self, batch: int, n_kv_heads: int, max_len: int, head_dim: int) -> None:
        self.shape = (batch, n_kv_heads, max_len, head_dim)
        self.max_len = max_len
        self.k, self.v = torch.zeros(self.shape, dtype=self.dtype), torch.zeros(self.shape, dtype=self.dtype)
        self.n = 0

    def refuse(self, n_new: int) -> None:
        if self.n + n_new > self.max_len:
            raise ValueError("full")

    def write(self, k: torch.Tensor, v: torch.Tensor) -> None:
        self.k[:, :, self.n : self.n + k.shape[2]] = k
        self.v[:, :, self.n : self.n + k.shape[2]] = v
        self.n += k.shape[2]

    def filled(self) -> Any:
        return self.k[:, :, : self.n], self.v[:, :, : self.n]

    def update(self, k: torch.Tensor, v: torch.Tensor) -> Any:
        self.refuse(k.shape[2])
        self.write(k, v)
        return self.filled()

    def __len__(self) -> int:
        return self.n

    def reset(self) -> None:
        self.n = 0


class _WholeBuffer(_Static):
    def filled(self) -> Any:
        return self.k, self.v


class _Wraps(_Static):
    def update(self, k: torch.Tensor, v: torch.Tensor) -> Any:
        for i in range(k.shape[2]):
            slot = (self.n + i) % self.max_len
            self.k[:, :, slot], self.v[:, :, slot] = k[:, :, i], v[:, :, i]
        self.n += k.shape[2]
        return self.k[:, :, : min(self.n, self.max_len)], self.v[:, :, : min(self.n, self.max_len)]


class _Truncates(_Static):
    def update(self, k: torch.Tensor, v: torch.Tensor) -> Any:
        room = self.max_len - self.n
        self.write(k[:, :, :room], v[:, :, :room])
        return self.filled()


class _TorchsError(_Static):
    def refuse(self, n_new: int) -> None:
        pass  # the assignment to a slice that is too short raises a RuntimeError


class _CountsBeforeLooking(_Static):
    def refuse(self, n_new: int) -> None:
        if self.n + n_new > self.max_len:
            self.n += n_new
            raise ValueError("full")

    def filled(self) -> Any:
        return self.k[:, :, : self.n], self.v[:, :, : self.n]


class _WritesBeforeLooking(_Static):
    def update(self, k: torch.Tensor, v: torch.Tensor) -> Any:
        room = self.max_len - self.n
        if k.shape[2] > room:
            self.write(k[:, :, :room], v[:, :, :room])
            raise ValueError("full")
        return super().update(k, v)


class _LastSlotUnused(_Static):
    def refuse(self, n_new: int) -> None:
        if self.n + n_new >= self.max_len:
            raise ValueError("full")


class _ResetKeepsLength(_Static):
    def reset(self) -> None:
        self.k.zero_()
        self.v.zero_()


class _ResetAllocates(_Static):
    def reset(self) -> None:
        self.k, self.v = torch.zeros(self.shape), torch.zeros(self.shape)
        self.n = 0


class _Copies(_Static):
    def filled(self) -> Any:
        return self.k[:, :, : self.n].clone(), self.v[:, :, : self.n].clone()


class _StaticExchanged(_Static):
    def filled(self) -> Any:
        return self.v[:, :, : self.n], self.k[:, :, : self.n]


class _StaticKeysAsValues(_Static):
    def write(self, k: torch.Tensor, v: torch.Tensor) -> None:
        super().write(k, k)


class _LenIsCapacity(_Static):
    def __len__(self) -> int:
        return self.max_len


class _SlotZero(_Static):
    def write(self, k: torch.Tensor, v: torch.Tensor) -> None:
        self.k[:, :, : k.shape[2]], self.v[:, :, : k.shape[2]] = k, v
        self.n += k.shape[2]


class _NonzeroRows(_Static):
    def update(self, k: torch.Tensor, v: torch.Tensor) -> Any:
        self.n = int((self.k.abs().sum(dim=(0, 1, 3)) > 0).sum())
        return super().update(k, v)

    def reset(self) -> None:
        self.k.zero_()
        self.v.zero_()
        self.n = 0


class _Float64(_Static):
    dtype = torch.float64


STATIC_CACHE = Exercise(
    id="StaticCache",
    is_class=True,
    reference=lambda batch, n_kv_heads, max_len, head_dim: StaticCache(batch, n_kv_heads, max_len, head_dim),
    stages=[
        Stage("a first update returns what it stored, no empty slot", [_static_steps(1), _static_steps(3)]),
        Stage("later tokens follow the earlier ones", [_static_steps(1, 1), _static_steps(3, 1, 2)]),
        Stage("an empty update returns what is stored", [_static_steps(0), _static_steps(2, 0, 1)]),
        Stage("it fills to the last slot", [_static_steps(MAX_LEN), _static_steps(4, 2, 1)]),
        Stage(
            "one token too many raises ValueError and writes nothing",
            [_one_too_many(MAX_LEN, 1), _one_too_many(5, 3)],
        ),
        Stage(
            "after a reset it is as new", [Probe("5 tokens, reset, then a second text of 2", _reset_and_rerun, 1e-6)]
        ),
        Stage("zeros are tokens", [Probe("2 tokens of zeros, then 1 more", _static_zeros, 1e-6)]),
        Stage(
            "caches and their callers share nothing",
            [
                Probe("3 tokens to one cache, 2 to another, 1 to the first", _two_static, 1e-6),
                Probe("update, then overwrite the tensors that were given", _static_inputs, 1e-6),
            ],
        ),
        Stage("float32", [Probe("update, then look at the dtype", _static_dtype)]),
        Stage(
            "storage is allocated once, and views of it come back",
            [Probe("three updates, a reset and one more, all results kept", _one_storage)],
        ),
    ],
    mistakes=[
        Mistake(
            "whole_buffer",
            "The whole buffer comes back, unwritten slots included: a key of zeros scores 0, and exp(0) takes weight.",
            "How many rows should come back after one token in a cache of 7 slots?",
            _WholeBuffer,
        ),
        Mistake(
            "wraps",
            "A full cache starts again at slot 0 and overwrites the first tokens without a word.",
            "What becomes of token 0 when token 7 is stored in a cache of 7 slots?",
            _Wraps,
        ),
        Mistake(
            "truncates",
            "What does not fit is dropped without a word.",
            "How does a caller learn that a token was not stored?",
            _Truncates,
        ),
        Mistake(
            "another_error",
            "A full cache raises an error, and not the ValueError that the exercise asks for: it comes from a "
            "slice that is too short, not from a decision.",
            "Where in your code is it decided that the new rows do not fit?",
            _TorchsError,
        ),
        Mistake(
            "counts_before_looking",
            "The length grows although the rows were refused.",
            "In which order do your code's three parts run: look, write, count?",
            _CountsBeforeLooking,
        ),
        Mistake(
            "writes_before_looking",
            "A part of the rows is stored before the rest is refused: half a chunk is in the cache.",
            "What does the cache hold after it has refused 3 tokens with room for 2?",
            _WritesBeforeLooking,
        ),
        Mistake(
            "last_slot_unused",
            "The last slot is never filled: a chunk that fits exactly is refused.",
            "How many tokens fit into 7 slots?",
            _LastSlotUnused,
        ),
        Mistake(
            "reset_keeps_the_length",
            "A reset clears the numbers and leaves the length: the next text begins after slots of zeros.",
            "What does len(cache) say right after a reset?",
            _ResetKeepsLength,
        ),
        Mistake(
            "reset_allocates",
            "A reset makes new buffers. Nothing but the length has to change: what is not counted is not read.",
            "What would happen if reset only set the length to 0?",
            _ResetAllocates,
        ),
        Mistake(
            "copies_each_time",
            "Every update copies all that is stored, by concatenation or by handing out a clone, which is what the "
            "preallocated buffer was to save: views are asked for.",
            "How many rows does your update copy when the cache holds 1,000?",
            _Copies,
        ),
        Mistake(
            "exchanged",
            "Keys and values come back exchanged.",
            "In which order does update return its two tensors?",
            _StaticExchanged,
        ),
        Mistake(
            "keys_as_values",
            "The keys are stored as values too.",
            "Which of the arguments is written into your second buffer?",
            _StaticKeysAsValues,
        ),
        Mistake(
            "len_is_capacity",
            "len gives the number of slots, where the number of tokens is asked for.",
            "What is len(cache) after one token?",
            _LenIsCapacity,
        ),
        Mistake(
            "writes_to_slot_zero",
            "Every update writes to slot 0: new tokens replace the first ones.",
            "Into which slot does the next token go when 3 are stored?",
            _SlotZero,
        ),
        Mistake(
            "zeros_taken_for_empty",
            "Rows of zeros are taken for empty slots. How many slots are filled is a number to keep, not to guess.",
            "Can a key that a model computed be all zeros?",
            _NonzeroRows,
        ),
        Mistake(
            "float64",
            "The buffers are float64, where float32 is asked for: twice the memory.",
            "How many bytes does one number in your buffer take?",
            _Float64,
        ),
    ],
)

DECODER = DecoderConfig(
    vocab_size=23, d_model=12, n_layers=3, n_heads=4, n_kv_heads=2, head_dim=5, d_ff=14, positions="learned"
)


def _model() -> TorchDecoder:
    return TorchDecoder.from_numpy(TinyDecoder(DECODER, seed=4, dtype=np.float32)).eval()


def _ids(batch: int, n: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(0, DECODER.vocab_size, (batch, n)))


def _run_cached(cached: Any, ids: torch.Tensor, sizes: Sequence[int], seen: Observation) -> None:
    if not callable(cached):
        raise Malformed(f"add_cache: expected a function cached(ids, caches), got {type(cached).__name__}")
    caches, at = None, 0
    for n_new in sizes:
        with torch.no_grad():
            logits, caches = pair(cached(ids[:, at : at + n_new], caches), "cached")
        at += n_new
        seen[f"logits of tokens up to {at}"] = observe(logits)


def _model_steps(*sizes: int) -> Probe:
    """Logits of every chunk, and how many tokens went through each layer's key projection in all."""

    def run(submission: Any) -> Observation:
        model = _model()
        tokens = [0] * DECODER.n_layers
        for i, layer in enumerate(cast("list[Any]", model.layers)):

            def count(_module: Any, inputs: Any, _output: Any, i: int = i) -> None:
                tokens[i] += inputs[0].shape[1]

            layer.attn.wk.register_forward_hook(count)
        seen: Observation = {}
        _run_cached(submission(model), _ids(2, sum(sizes)), sizes, seen)
        # Weights used without their module are not seen; more tokens than there are can only be recomputation.
        seen["tokens sent through wk in each layer"] = tuple(max(n, sum(sizes)) for n in tokens)
        return seen

    return Probe(f"cached(ids, caches) on {_chunks(sizes)}, batch 2", run, 1e-4)


def _new_text(submission: Any) -> Observation:
    """Two texts after each other from caches=None, with one cached model."""
    cached = submission(_model())
    first: Observation = {}
    second: Observation = {}
    _run_cached(cached, _ids(2, 4, seed=1), (3, 1), first)
    _run_cached(cached, _ids(2, 4, seed=2), (2, 2), second)
    return {f"text 1, {key}": v for key, v in first.items()} | {f"text 2, {key}": v for key, v in second.items()}


def _two_texts_in_turn(submission: Any) -> Observation:
    """Two texts, a call of one and a call of the other in turn, each with its own caches."""
    cached = submission(_model())
    texts, held = (_ids(1, 5, seed=3), _ids(1, 5, seed=4)), [None, None]
    seen: Observation = {}
    for start, stop in ((0, 3), (3, 4), (4, 5)):
        for i, ids in enumerate(texts):
            with torch.no_grad():
                logits, held[i] = pair(cached(ids[:, start:stop], held[i]), "cached")
            seen[f"text {i + 1}, logits of tokens up to {stop}"] = observe(logits)
    return seen


def _list_stays(submission: Any) -> Observation:
    """Whether a list of caches that is handed in holds the same objects afterwards."""
    cached, ids = submission(_model()), _ids(1, 4)
    with torch.no_grad():
        _, caches = pair(cached(ids[:, :3], None), "cached")
        before = list(caches) if isinstance(caches, list) else []
        pair(cached(ids[:, 3:], caches), "cached")
    same_objects = not isinstance(caches, list) or [id(c) for c in caches] == [id(c) for c in before]
    return {"the list of caches handed in, afterwards": "unchanged" if same_objects else "changed"}


def _model_stays(submission: Any) -> Observation:
    model, ids = _model(), _ids(2, 4)
    seen: Observation = {}
    _run_cached(submission(model), ids, (3, 1), seen)
    with torch.no_grad():
        logits = model(ids)
    return {"model(ids) afterwards": observe(logits)}


CachedLayer = Callable[[Any, torch.Tensor, Any, int], tuple[torch.Tensor, Any]]


def _attend(attn: Any, x: torch.Tensor, cache: Any, mask: Callable[[int, int], torch.Tensor] = offset_mask) -> Any:
    q = split_heads(attn.wq(x), attn.n_heads)
    k, v = update_cache(cache, split_heads(attn.wk(x), attn.n_kv_heads), split_heads(attn.wv(x), attn.n_kv_heads))
    out = scaled_dot_product_attention(q, k, v, attn_mask=mask(q.shape[2], k.shape[2]), enable_gqa=True)
    return attn.wo(merge_heads(out)), (k, v)


def _adder(
    attend: Callable[..., Any] = _attend,
    start: Callable[[Any], int] = lambda caches: 0 if caches[0] is None else caches[0][0].shape[2],
    residual: bool = True,
) -> Callable[..., Any]:
    """A right add_cache, spoiled by one of its arguments."""

    def add_cache(model: Any) -> Any:
        def cached(ids: torch.Tensor, caches: Any = None) -> Any:
            caches = caches or [None] * len(model.layers)
            x = model.embed_at(ids, start(caches))
            kept = []
            for layer, cache in zip(model.layers, caches, strict=True):
                out, cache = attend(layer.attn, layer.attn_norm(x), cache)
                x = x + out if residual else out
                x = x + layer.mlp(layer.mlp_norm(x))
                kept.append(cache)
            return model.head(model.final_norm(x)), kept

        return cached

    return add_cache


def _with_mask(mask: Callable[[int, int], torch.Tensor]) -> Callable[..., Any]:
    return _adder(attend=lambda attn, x, cache: _attend(attn, x, cache, mask))


def _tril(n_new: int, n_total: int) -> torch.Tensor:
    return torch.ones(n_new, n_total, dtype=torch.bool).tril()


def _all_true(n_new: int, n_total: int) -> torch.Tensor:
    return torch.ones(n_new, n_total, dtype=torch.bool)


def _causal_without_cache(n_new: int, n_total: int) -> torch.Tensor:
    return _tril(n_new, n_total) if n_new == n_total else _all_true(n_new, n_total)


def _new_only(attn: Any, x: torch.Tensor, cache: Any) -> Any:
    """Keeps the cache and attends over the new tokens only."""
    out, _ = _attend(attn, x, None)
    return out, _attend(attn, x, cache)[1]


def _recomputes(model: Any) -> Any:
    """The whole text again in each call; the caches are the ids."""

    def cached(ids: torch.Tensor, caches: Any = None) -> Any:
        text = ids if caches is None else torch.cat([caches[0], ids], dim=1)
        return model(text)[:, text.shape[1] - ids.shape[1] :], [text] * len(model.layers)

    return cached


def _shared_cache(model: Any) -> Any:
    """One pair for all layers, which each of them appends to."""

    def cached(ids: torch.Tensor, caches: Any = None) -> Any:
        cache = None if caches is None else caches[0]
        n_layers = len(model.layers)
        x = model.embed_at(ids, 0 if cache is None else cache[0].shape[2] // n_layers)
        for layer in model.layers:
            out, cache = _attend(layer.attn, layer.attn_norm(x), cache)
            x = x + out
            x = x + layer.mlp(layer.mlp_norm(x))
        return model.head(model.final_norm(x)), [cache] * n_layers

    return cached


def _remembers(model: Any) -> Any:
    """Keeps the caches in a closure and takes no notice of what is handed in."""
    held: list[Any] = [None]

    def cached(ids: torch.Tensor, caches: Any = None) -> Any:
        logits, held[0] = _adder()(model)(ids, held[0])
        return logits, held[0]

    return cached


def _remembers_until_none(model: Any) -> Any:
    """Keeps the caches in a closure, and begins anew only when it is given None."""
    held: list[Any] = [None]

    def cached(ids: torch.Tensor, caches: Any = None) -> Any:
        logits, held[0] = _adder()(model)(ids, None if caches is None else held[0])
        return logits, held[0]

    return cached


def _writes_into_the_list(model: Any) -> Any:
    def cached(ids: torch.Tensor, caches: Any = None) -> Any:
        logits, kept = _adder()(model)(ids, caches)
        if caches is None:
            return logits, kept
        caches[:] = kept
        return logits, caches

    return cached


def _only_last_row(model: Any) -> Any:
    def cached(ids: torch.Tensor, caches: Any = None) -> Any:
        logits, caches = _adder()(model)(ids, caches)
        return logits[:, -1:], caches

    return cached


def _no_caches_back(model: Any) -> Any:
    def cached(ids: torch.Tensor, caches: Any = None) -> Any:
        return model(ids), [None] * len(model.layers)

    return cached


ADD_CACHE = Exercise(
    id="add_cache",
    reference=lambda model: add_cache_to(model),
    stages=[
        Stage("a prompt from nothing gives the model's own logits", [_model_steps(1), _model_steps(5)]),
        Stage("one token over the caches", [_model_steps(1, 1), _model_steps(5, 1)]),
        Stage("chunks over the caches", [_model_steps(4, 3), _model_steps(2, 3, 1, 1)]),
        Stage(
            "each text has its own caches",
            [
                Probe("two texts after each other", _new_text, 1e-4),
                Probe("two texts in turn", _two_texts_in_turn, 1e-4),
            ],
        ),
        Stage(
            "the list that is handed in stays as it was", [Probe("cached twice, then look at the list", _list_stays)]
        ),
        Stage("the model itself stays as it was", [Probe("cached, then model(ids)", _model_stays, 1e-4)]),
    ],
    mistakes=[
        Mistake(
            "positions_restart",
            "Positions restart at 0 in every call: the new tokens get the embeddings of the first positions. "
            "Nothing crashes, and the wrong keys are stored.",
            "When 5 tokens are cached, at which position does the next one stand?",
            _adder(start=lambda caches: 0),
        ),
        Mistake(
            "position_one_too_high",
            "Positions over a cache are one too high: with 5 tokens cached, the next stands at 5.",
            "Positions count from 0. At which one does the sixth token stand?",
            _adder(start=lambda caches: 0 if caches[0] is None else caches[0][0].shape[2] + 1),
        ),
        Mistake(
            "position_one_too_low",
            "Positions over a cache are one too low: the next token gets the place of the last.",
            "Positions count from 0. At which one does the sixth token stand?",
            _adder(start=lambda caches: 0 if caches[0] is None else caches[0][0].shape[2] - 1),
        ),
        Mistake(
            "top_left_triangle",
            "The mask hangs from the top-left corner, as is_causal=True does: over a cache, a query sees the beginning "
            "of the text and not itself.",
            "Which keys does is_causal=True leave to one query over 6 keys?",
            _with_mask(_tril),
        ),
        Mistake(
            "no_mask",
            "Nothing is hidden: tokens of a prompt see those that come after them.",
            "In a prompt of 5 tokens, which keys may the first one see?",
            _with_mask(_all_true),
        ),
        Mistake(
            "no_mask_over_a_cache",
            "The mask is causal only while the cache is empty: a later chunk sees its own future.",
            "In a chunk of 3 after 4 cached tokens, may the first see the third?",
            _with_mask(_causal_without_cache),
        ),
        Mistake(
            "attends_to_new_only",
            "The caches are kept and returned, and attention looks at the new rows only.",
            "Over which keys does your attention run, those just projected or those of the cache too?",
            _adder(attend=_new_only),
        ),
        Mistake(
            "recomputed",
            "The logits are right and nothing was saved: every call runs the whole text through the layers again.",
            "How many tokens go through a layer's wk in the call that adds one token to 5?",
            _recomputes,
        ),
        Mistake(
            "one_cache_for_all_layers",
            "All layers share one cache: a layer attends to the keys of the others.",
            "How many caches does a model of 3 layers need?",
            _shared_cache,
        ),
        Mistake(
            "remembers_by_itself",
            "The caches are kept inside and what is handed in is not used: a new text goes on after the last one.",
            "What should cached(ids, None) know about an earlier text?",
            _remembers,
            fresh=False,
        ),
        Mistake(
            "remembers_until_none",
            "The caches are kept inside until None comes in: two texts that are decoded in turn get each other's.",
            "Where does your function find the caches of the text that it is called for?",
            _remembers_until_none,
        ),
        Mistake(
            "writes_into_the_list",
            "The list of caches that was handed in is overwritten: a caller who kept it, to try another next token, "
            "has lost it.",
            "What does the caller's list hold after your function has returned?",
            _writes_into_the_list,
        ),
        Mistake(
            "no_caches",
            "No cache is kept: each call is a text of its own.",
            "What is in the caches that you return?",
            _no_caches_back,
        ),
        Mistake(
            "last_row_only",
            "Only the last token's logits come back. The contract is a row for every token that was fed in.",
            "What shape do the logits of a prompt of 5 tokens have?",
            _only_last_row,
        ),
        Mistake(
            "residual_forgotten",
            "The attention's output replaces the stream, where it is added to it.",
            "What does the model's own layer do with x around its attention?",
            _adder(residual=False),
        ),
    ],
)


class _Oracle:
    """A model whose next token depends on every token it was fed and on its place, and which notes its calls.

    Its caches are the tokens fed so far. Logits at a position are highest at (sum of token * (place + 1)) mod vocab.
    """

    def __init__(self, vocab: int) -> None:
        self.vocab = vocab
        self.fed: list[int] = []
        self.first_caches: Any = "never called"
        self.passed_back = True
        self.last: Any = None

    def __call__(self, ids: Any, caches: Any = None) -> Any:
        if not isinstance(ids, torch.Tensor) or ids.dim() != 2:
            raise Malformed(f"model was given ids of shape {getattr(ids, 'shape', None)}, expected (batch, n)")
        if self.fed:
            self.passed_back &= caches is self.last
        else:
            self.first_caches = "None" if caches is None else "something else"
        if len(self.fed) > 100:
            raise Malformed("generate: the model was called over 100 times for a few tokens")
        self.fed.append(ids.shape[1])
        text = ids if caches is None else torch.cat([caches[0], ids], dim=1)
        place = torch.arange(1, text.shape[1] + 1)
        best = ((text * place).cumsum(dim=1) * 7 + place) % self.vocab
        logits = nn.functional.one_hot(best, self.vocab).float()[:, text.shape[1] - ids.shape[1] :]
        self.last = [text]
        return logits, self.last


def _generation(batch: int, n_prompt: int, n_new: int, vocab: int = 31) -> Probe:
    def run(submission: Any) -> Observation:
        model = _Oracle(vocab)
        prompt = torch.from_numpy(np.random.default_rng(n_prompt).integers(0, model.vocab, (batch, n_prompt)))
        before = prompt.clone()
        out = observe(submission(model, prompt, n_new))
        return {
            "the tokens": out,
            "tokens fed in each call": tuple(model.fed),
            "caches of the first call": model.first_caches,
            "caches passed back as they came": model.passed_back,
            "the prompt afterwards": "unchanged" if torch.equal(before, prompt) else "changed",
        }

    few = f" and a vocabulary of {vocab}" if vocab < 31 else ""
    return Probe(f"generate(model, ids, {n_new}) for ids of shape ({batch}, {n_prompt}){few}", run)


def _loop(
    row: int = -1,
    calls: int = 0,
    feed_all: bool = False,
    pass_back: bool = True,
    with_prompt: bool = True,
    share: bool = False,
) -> Callable[..., Any]:
    """A right loop, spoiled by one of its arguments."""

    def generate(model: Any, ids: torch.Tensor, n_new: int) -> torch.Tensor:
        out, fed, caches = ids, ids, None
        for _ in range(n_new + calls if n_new else 0):
            logits, returned = model(fed, caches)
            caches = returned if pass_back else None
            token = logits[:, row].argmax(dim=-1, keepdim=True)
            token = token[:1].expand(len(ids), 1) if share else token
            out = torch.cat([out, token], dim=1)
            fed = out if feed_all else token
        return out if with_prompt else out[:, ids.shape[1] :]

    return generate


def _cut_to_size(model: Any, ids: torch.Tensor, n_new: int) -> torch.Tensor:
    """One call too many, whose token is thrown away."""
    return _loop(calls=1)(model, ids, n_new)[:, : ids.shape[1] + n_new]


def _prompt_token_by_token(model: Any, ids: torch.Tensor, n_new: int) -> torch.Tensor:
    caches = None
    for i in range(ids.shape[1] - 1 if n_new else 0):
        _, caches = model(ids[:, i : i + 1], caches)
    out, fed = ids, ids[:, -1:]
    for _ in range(n_new):
        logits, caches = model(fed, caches)
        fed = logits[:, -1].argmax(dim=-1, keepdim=True)
        out = torch.cat([out, fed], dim=1)
    return out


def _ends_at_token_zero(model: Any, ids: torch.Tensor, n_new: int) -> torch.Tensor:
    out, fed, caches = ids, ids, None
    for _ in range(n_new):
        logits, caches = model(fed, caches)
        fed = logits[:, -1].argmax(dim=-1, keepdim=True)
        out = torch.cat([out, fed], dim=1)
        if (fed == 0).all():
            break
    return out


def _last_prompt_token_twice(model: Any, ids: torch.Tensor, n_new: int) -> torch.Tensor:
    """Prefills the whole prompt, then feeds its last token once more to get logits."""
    if n_new == 0:
        return ids
    _, caches = model(ids, None)
    out, fed = ids, ids[:, -1:]
    for _ in range(n_new):
        logits, caches = model(fed, caches)
        fed = logits[:, -1].argmax(dim=-1, keepdim=True)
        out = torch.cat([out, fed], dim=1)
    return out


def _prefilled_then_repeated(model: Any, ids: torch.Tensor, n_new: int) -> torch.Tensor:
    """The prompt but its last token first, the last token with the loop: one call more than needed."""
    if n_new == 0 or ids.shape[1] == 1:
        return _loop()(model, ids, n_new)
    _, caches = model(ids[:, :-1], None)
    out, fed = ids, ids[:, -1:]
    for _ in range(n_new):
        logits, caches = model(fed, caches)
        fed = logits[:, -1].argmax(dim=-1, keepdim=True)
        out = torch.cat([out, fed], dim=1)
    return out


GENERATE = Exercise(
    id="generate",
    reference=lambda model, ids, n_new: generate_with(model, ids, n_new),
    stages=[
        Stage("one new token takes one call", [_generation(1, 3, 1)]),
        Stage("the prompt once, then one token a call", [_generation(1, 3, 4), _generation(1, 1, 3)]),
        Stage("each sequence of a batch by itself", [_generation(2, 4, 3), _generation(3, 2, 5)]),
        Stage("no token ends the text early", [_generation(1, 5, 4, vocab=3)]),
        Stage("no new tokens, no calls", [_generation(2, 4, 0)]),
    ],
    mistakes=[
        Mistake(
            "whole_sequence_with_a_cache",
            "The whole sequence is fed in at every step although the cache holds it: its keys are stored again.",
            "Which tokens does the cache not know yet when the second call is made?",
            _loop(feed_all=True),
        ),
        Mistake(
            "no_cache",
            "The tokens are right and nothing was saved: every call is fed the whole sequence, and no caches.",
            "How many tokens should the second call be fed?",
            _loop(feed_all=True, pass_back=False),
        ),
        Mistake(
            "caches_dropped",
            "One token is fed in, and the caches that came back are not passed on: the model has forgotten the prompt.",
            "What does the model know of the prompt in your second call?",
            _loop(pass_back=False),
        ),
        Mistake(
            "first_position",
            "The next token is taken from the first position's logits. At one-token steps first and last are the same, "
            "so only the prompt's call shows it.",
            "Which of the prompt's positions predicts the token after the prompt?",
            _loop(row=0),
        ),
        Mistake(
            "one_token_too_many",
            "One token too many comes back: the prompt's call already gives the first new one.",
            "How many new tokens are there after n_new calls?",
            _loop(calls=1),
        ),
        Mistake(
            "one_token_too_few",
            "One token too few comes back: the prompt's call was not counted as one that gives a token.",
            "How many new tokens are there after n_new - 1 calls?",
            _loop(calls=-1),
        ),
        Mistake(
            "one_call_too_many",
            "The tokens are right, and one more call was made: the last token is never fed in.",
            "Who reads the logits of your last call?",
            _cut_to_size,
        ),
        Mistake(
            "prompt_token_by_token",
            "The prompt is fed in one token at a time: right, and slow. One call takes the whole prompt.",
            "How many calls does a prompt of 1,000 tokens take in your loop?",
            _prompt_token_by_token,
        ),
        Mistake(
            "last_prompt_token_twice",
            "The last prompt token is fed in twice: once with the prompt, once more to get logits.",
            "What did the prompt's call return besides the caches?",
            _last_prompt_token_twice,
        ),
        Mistake(
            "prompt_in_two_calls",
            "The prompt takes two calls, all but its last token and then that one: one call more than needed.",
            "Which call's logits does your loop throw away?",
            _prefilled_then_repeated,
        ),
        Mistake(
            "ends_early",
            "A token is taken for the end of the text. Nothing was said of an end token: n_new tokens are asked for.",
            "Which token ids mean the end of a text to a model that you know nothing of?",
            _ends_at_token_zero,
        ),
        Mistake(
            "only_new_tokens",
            "Only the new tokens come back; the prompt belongs in front of them.",
            "What is the shape of the result for a prompt of 3 and 4 new tokens?",
            _loop(with_prompt=False),
        ),
        Mistake(
            "first_sequence_for_all",
            "The token of the first sequence is given to all of them.",
            "Over which axis does your argmax run, and what is left for the second sequence?",
            _loop(share=True),
        ),
    ],
)

EXERCISES = [UPDATE_CACHE, CACHED_ATTENTION, STATIC_CACHE, ADD_CACHE, GENERATE]
