"""The PyTorch decoder equals NumPy, scaled_dot_product_attention and transformers, and itself when cached."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

from kvlab import decoder as numpy_decoder
from kvlab.decoder import TinyDecoder
from kvlab.positions import rotate as numpy_rotate
from kvlab.torch_attention import attention, merge_heads, offset_mask, rotate, split_heads
from kvlab.torch_caches import StaticCache
from kvlab.torch_decoder import (
    CachedAttention,
    TorchDecoder,
    add_cache,
    cached_tokens,
    generate,
    greedy,
    sample,
    to_llama,
)

torch.set_num_threads(1)  # on tensors this small threads only wait for each other

POSITIONS = ["rope", "learned", "alibi"]


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def random_ids(batch: int, n: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 64, (batch, n), generator=torch.Generator().manual_seed(seed))


def pair_of(positions: str, dtype: Any = np.float64, **fields: Any) -> tuple[TinyDecoder, TorchDecoder]:
    tiny = TinyDecoder(positions=positions, dtype=dtype, **({"n_layers": 3} | fields))
    return tiny, TorchDecoder.from_numpy(tiny)


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize(("dtype", "bound"), [(np.float64, 1e-9), (np.float32, 1e-4)])
def test_equals_numpy(positions: str, dtype: Any, bound: float) -> None:
    tiny, model = pair_of(positions, dtype)
    ids = random_ids(2, 9)
    with torch.no_grad():
        logits = model(ids)
    assert logits.dtype == torch.from_numpy(np.zeros(0, dtype)).dtype
    for row, one in zip(logits.numpy(), ids.numpy(), strict=True):
        assert np.abs(row - tiny(one)).max() < bound


@given(
    n_kv_heads=st.integers(1, 3),
    group=st.integers(1, 3),
    n_past=st.integers(0, 6),
    n_new=st.integers(1, 4),
    batch=st.integers(1, 2),
    seed=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_attention_equals_sdpa(n_kv_heads: int, group: int, n_past: int, n_new: int, batch: int, seed: int) -> None:
    n_total = n_past + n_new
    q = normal(batch, n_kv_heads * group, n_new, 5, seed=seed)
    k, v = normal(2, batch, n_kv_heads, n_total, 5, seed=seed + 1)
    mask = torch.arange(n_total)[None, :] <= torch.arange(n_past, n_total)[:, None]
    theirs = scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
    assert (attention(q, k, v) - theirs).abs().max() < 1e-12
    assert torch.equal(offset_mask(n_new, n_total), mask)


@pytest.mark.parametrize("start", [0, 7, 4000])
def test_rotate_equals_numpy(start: int) -> None:
    x = normal(2, 3, 5, 8)
    theirs = np.stack([numpy_rotate(one, np.arange(start, start + 5), 500.0) for one in x.numpy()])
    assert np.abs(rotate(x, start, 500.0).numpy() - theirs).max() < 1e-12


def test_split_and_merge_are_inverse() -> None:
    x = normal(2, 5, 12)
    assert torch.equal(merge_heads(split_heads(x, 3)), x)
    assert torch.equal(split_heads(x, 3)[1, 2, 4], x[1, 4, 8:12])


def make_caches(kind: str, model: Any, batch: int, n_total: int) -> Any:
    """None stands for (k, v) pairs."""
    return {
        "pairs": None,
        "concat": model.make_caches(batch),
        "static": model.make_caches(batch, max_len=max(n_total, 1)),
    }[kind]


@given(
    positions=st.sampled_from(POSITIONS),
    kind=st.sampled_from(["pairs", "concat", "static"]),
    n_kv_heads=st.sampled_from([1, 2, 4]),
    batch=st.integers(1, 3),
    chunks=st.lists(st.integers(0, 5), min_size=1, max_size=5),
    seed=st.integers(0, 9),
)
@settings(max_examples=30, deadline=None)
def test_cached_equals_uncached(
    positions: str, kind: str, n_kv_heads: int, batch: int, chunks: list[int], seed: int
) -> None:
    _, model = pair_of(positions, n_kv_heads=n_kv_heads, n_layers=2)
    cached = add_cache(model)
    ids = random_ids(batch, sum(chunks), seed)
    caches = make_caches(kind, cached, batch, sum(chunks))
    parts, done = [], 0
    with torch.no_grad():
        for n in chunks:
            logits, caches = cached(ids[:, done : done + n], caches)
            parts.append(logits)
            done += n
        whole = model(ids)
    assert torch.allclose(torch.cat(parts, dim=1), whole, rtol=0, atol=1e-10)
    assert [cached_tokens(cache) for cache in caches] == [sum(chunks)] * 2


@pytest.mark.parametrize("kind", ["pairs", "concat", "static"])
def test_the_cache_is_used(kind: str) -> None:
    """Equal outputs prove nothing: count the token rows that reach each key projection."""
    _, model = pair_of("rope")
    cached = add_cache(model)
    seen = [0, 0, 0]

    def count(i: int) -> Any:
        def hook(module: Any, inputs: Any, output: torch.Tensor) -> None:
            seen[i] += output.shape[1]

        return hook

    for i, layer in enumerate(model.layers):
        layer.attn.wk.register_forward_hook(count(i))
    generate(cached, random_ids(2, 5), 4, caches=make_caches(kind, cached, 2, 8))
    assert seen == [8, 8, 8]  # 5 prompt tokens and 3 fed back; the fourth is never fed in


def test_pairs_given_stay_as_they_were_and_cache_objects_come_back() -> None:
    _, model = pair_of("learned")
    cached = add_cache(model)
    with torch.no_grad():
        _, old = cached(random_ids(1, 4))
        kept = [k.clone() for k, _ in old]
        _, new = cached(random_ids(1, 2, seed=1), old)
        assert all(torch.equal(k, before) for (k, _), before in zip(old, kept, strict=True))
        assert [k.shape for k, _ in new] == [(1, 2, 6, 8)] * 3
        caches = cached.make_caches(1)
        _, same = cached(random_ids(1, 4), caches)
    assert all(a is b for a, b in zip(same, caches, strict=True))


def test_cached_attention_on_its_own() -> None:
    torch.manual_seed(0)
    layer = CachedAttention(d_model=20, n_heads=6, n_kv_heads=2, head_dim=5).double()
    x = normal(2, 7, 20)
    with torch.no_grad():
        whole, _ = layer(x)
        first, cache = layer(x[:, :3])
        second, (k, _) = layer(x[:, 3:], cache)
        q, keys, values = (split_heads(w(x), n) for w, n in ((layer.wq, 6), (layer.wk, 2), (layer.wv, 2)))
        oracle = layer.wo(merge_heads(scaled_dot_product_attention(q, keys, values, is_causal=True, enable_gqa=True)))
    assert k.shape == (2, 2, 7, 5)
    assert (whole - oracle).abs().max() < 1e-12
    assert (torch.cat([first, second], dim=1) - oracle).abs().max() < 1e-12


def test_add_cache_shares_the_weights_and_from_numpy_copies_them() -> None:
    tiny, model = pair_of("learned")
    assert {p.data_ptr() for p in add_cache(model).parameters()} == {p.data_ptr() for p in model.parameters()}
    before = tiny.weights["layers"][0]["wq"].copy()
    with torch.no_grad():
        model.layers[0].attn.wq.weight.zero_()
        model.embed.weight.zero_()
    assert np.array_equal(tiny.weights["layers"][0]["wq"], before)
    assert tiny.weights["embed"].any()
    assert model.head.weight is model.embed.weight


def test_the_parts_add_up_to_the_model() -> None:
    """The exercise add_cache calls these parts one by one."""
    _, model = pair_of("learned")
    ids = random_ids(2, 6)
    with torch.no_grad():
        x = model.embed(ids) + model.positions(torch.arange(6))
        for layer in model.layers:
            x = x + layer.attn(layer.attn_norm(x))
            x = x + layer.mlp(layer.mlp_norm(x))
        assert torch.equal(model.head(model.final_norm(x)), model(ids))
    assert all(m.bias is None for m in model.modules() if isinstance(m, torch.nn.Linear))


# transformers, an implementation that shares no line with ours


def logits_by_hugging_face(llama: Any, cache: Any, ids: torch.Tensor, chunks: list[int]) -> torch.Tensor:
    parts = [llama(part, cache=cache).logits for part in ids.split(chunks, dim=1)]
    return torch.cat(parts, dim=1)


@pytest.mark.parametrize("n_kv_heads", [1, 2, 4])
def test_equals_transformers(n_kv_heads: int) -> None:
    from transformers import DynamicCache, StaticCache

    _, model = pair_of("rope", np.float32, n_kv_heads=n_kv_heads)
    llama = to_llama(model)
    cached = add_cache(model)
    ids = random_ids(2, 9)
    with torch.no_grad():
        caches: Any = None
        parts = []
        for part in ids.split([4, 3, 1, 1], dim=1):
            logits, caches = cached(part, caches)
            parts.append(logits)
        ours = torch.cat(parts, dim=1)
        whole = llama(ids, use_cache=False).logits
        dynamic = logits_by_hugging_face(llama, DynamicCache(config=llama.config), ids, [4, 3, 1, 1])
        static_cache = StaticCache(config=llama.config, max_cache_len=12)
        static = logits_by_hugging_face(llama, static_cache, ids, [4, 3, 1, 1])
    for theirs in (whole, dynamic, static):
        assert (ours - theirs).abs().max() < 1e-5
    stored = static_cache.layers[1].keys[:, :, :9]
    assert (caches[1][0] - stored).abs().max() < 1e-5


def test_to_llama_takes_the_rope_base() -> None:
    _, model = pair_of("rope", np.float32, rope_base=500.0)
    ids = random_ids(1, 9)
    with torch.no_grad():
        assert (model(ids) - to_llama(model)(ids).logits).abs().max() < 1e-5


@pytest.mark.parametrize("positions", ["learned", "alibi"])
def test_to_llama_refuses_other_positions(positions: str) -> None:
    with pytest.raises(ValueError, match=f'this model has positions="{positions}"'):
        to_llama(pair_of(positions)[1])


# generation and sampling


def test_generate_equals_numpy_and_counts_its_calls() -> None:
    tiny, model = pair_of("learned")
    cached = add_cache(model)
    calls = []

    def counting(ids: torch.Tensor, caches: Any) -> Any:
        calls.append(ids.shape[1])
        return cached(ids, caches)

    ids = random_ids(2, 5)
    out = generate(counting, ids, 6)
    assert calls == [5, 1, 1, 1, 1, 1]
    for row, prompt in zip(out.numpy(), ids.numpy(), strict=True):
        assert np.array_equal(row, numpy_decoder.generate(tiny, prompt, 6))
    assert torch.equal(generate(counting, ids, 0), ids)
    assert len(calls) == 6


def test_generate_builds_no_graph() -> None:
    _, model = pair_of("learned")
    cached = add_cache(model)
    caches = cached.make_caches(1, max_len=8)
    generate(cached, random_ids(1, 4), 3, caches=caches)
    k, _ = caches[0].update(*normal(2, 1, 2, 0, 8))
    assert not k.requires_grad


PROBABILITIES = torch.tensor([0.1, 0.5, 0.15, 0.25], dtype=torch.float64)


@pytest.mark.parametrize(
    ("top_p", "nucleus"),
    [(0.3, {1}), (0.5, {1}), (0.51, {1, 3}), (0.75, {1, 3}), (0.8, {1, 2, 3}), (1.0, {0, 1, 2, 3})],
)
def test_samples_come_from_the_nucleus_in_proportion(top_p: float, nucleus: set[int]) -> None:
    generator = torch.Generator().manual_seed(0)
    drawn = sample(PROBABILITIES.log().expand(20000, 4), top_p=top_p, generator=generator)
    assert drawn.shape == (20000, 1)
    share = torch.bincount(drawn[:, 0], minlength=4) / 20000
    kept = torch.tensor([float(i in nucleus) for i in range(4)]) * PROBABILITIES
    assert (share - kept / kept.sum()).abs().max() < 0.02  # 5 standard deviations
    assert set(drawn.unique().tolist()) == nucleus


def test_temperature_scales_the_logits() -> None:
    logits = PROBABILITIES.log().expand(20000, 4)
    generator = torch.Generator().manual_seed(0)
    share = torch.bincount(sample(logits, temperature=0.5, generator=generator)[:, 0], minlength=4) / 20000
    assert (share - PROBABILITIES**2 / (PROBABILITIES**2).sum()).abs().max() < 0.02
    assert (sample(logits[:50], temperature=1e-3, generator=generator) == greedy(logits[:50])).all()


def test_sampling_repeats_with_its_generator_and_leaves_the_global_one() -> None:
    logits = normal(3, 50)
    state = torch.get_rng_state()
    first, second = (sample(logits, generator=torch.Generator().manual_seed(7)) for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), state)


# what is refused


@pytest.mark.usefixtures("no_shape_hook")
def test_bad_ids_and_caches_are_refused() -> None:
    _, model = pair_of("learned", max_positions=16)
    cached = add_cache(model)
    with pytest.raises(ValueError, match=r"ids: expected shape \(batch, n\), got \(5,\)"):
        model(torch.arange(5))
    with pytest.raises(ValueError, match="expected int64 or int32, got"):
        model(torch.zeros(1, 3))
    with pytest.raises(ValueError, match="ids must be 0 to 63, got 3 to 64"):
        model(torch.tensor([[3, 64]]))
    with pytest.raises(ValueError, match="ids must be 0 to 63, got -1 to 2"):
        model(torch.tensor([[-1, 2]]))
    with pytest.raises(ValueError, match="0 to 15, the rows of the learned table, got 0 to 16"):
        model(random_ids(1, 17))
    _, caches = cached(random_ids(1, 15))
    with pytest.raises(ValueError, match="got 15 to 16"):
        cached(random_ids(1, 2), caches)
    with pytest.raises(ValueError, match="expected one a layer, 3, got 2"):
        cached(random_ids(1, 1), caches[:2])
    with pytest.raises(ValueError, match=r"equally many tokens, got lengths \[0, 15\]"):
        cached(random_ids(1, 1), [None, *caches[1:]])
    with pytest.raises(ValueError, match="batch"):
        cached(random_ids(2, 1), caches)


@pytest.mark.usefixtures("no_shape_hook")
def test_a_full_static_cache_is_refused() -> None:
    _, model = pair_of("rope")
    cached = add_cache(model)
    caches = cached.make_caches(1, max_len=4)
    cached(random_ids(1, 4), caches)
    with pytest.raises(ValueError, match="4 of 4 slots are filled, 1 more do not fit"):
        cached(random_ids(1, 1), caches)


@pytest.mark.usefixtures("no_shape_hook")
def test_bad_attention_inputs_are_refused() -> None:
    q, k = normal(1, 4, 3, 5), normal(1, 2, 7, 5)
    with pytest.raises(ValueError, match="3 new tokens cannot be among 2"):
        attention(q, k[:, :, :2], k[:, :, :2])
    with pytest.raises(ValueError, match="4 query heads and 3 KV heads"):
        attention(q, normal(1, 3, 7, 5), normal(1, 3, 7, 5))
    with pytest.raises(ValueError, match="head_dim is 4"):
        attention(q, k[..., :4], k)
    with pytest.raises(ValueError, match="n_total is 6"):
        attention(q, k, k[:, :, :6])
    with pytest.raises(ValueError, match=r"v: expected .* head_dim is 4"):
        attention(q, k, k[..., :4])
    with pytest.raises(ValueError, match=r"v: expected .* batch is 2"):
        attention(q, k, normal(2, 2, 7, 5))
    with pytest.raises(ValueError, match="must be even"):
        rotate(q, 0)
    with pytest.raises(ValueError, match="start"):
        rotate(normal(1, 4, 3, 6), -1)
    with pytest.raises(ValueError, match="a width of 12 does not divide into 5 heads"):
        split_heads(normal(1, 3, 12), 5)
    with pytest.raises(ValueError, match="x: expected shape"):
        merge_heads(normal(3, 4, 5))
    with pytest.raises(ValueError, match="n_total"):
        offset_mask(0, -1)
    with pytest.raises(ValueError, match="multiple"):
        CachedAttention(d_model=8, n_heads=4, n_kv_heads=3, head_dim=2)


@pytest.mark.usefixtures("no_shape_hook")
def test_bad_generation_is_refused() -> None:
    cached = add_cache(pair_of("rope")[1])
    with pytest.raises(ValueError, match="the prompt is empty"):
        generate(cached, random_ids(1, 0), 3)
    with pytest.raises(ValueError, match="n_new: expected a whole number of at least 0, got -1"):
        generate(cached, random_ids(1, 3), -1)
    with pytest.raises(ValueError, match="temperature must be above 0, got 0"):
        sample(normal(1, 4), temperature=0)
    for top_p in (0, 1.5, float("nan")):
        with pytest.raises(ValueError, match="top_p must be above 0 and at most 1"):
            sample(normal(1, 4), top_p=top_p)


def test_static_cache_views_reach_the_decoder() -> None:
    """The decoder attends to what update returns, never to the whole buffer: zero keys would take weight."""
    _, model = pair_of("learned")
    cached = add_cache(model)
    ids = random_ids(1, 5)
    with torch.no_grad():
        small, _ = cached(ids, cached.make_caches(1, max_len=5))
        large, caches = cached(ids, cached.make_caches(1, max_len=200))
    assert torch.equal(small, large)
    assert all(isinstance(cache, StaticCache) for cache in caches)
