"""The tiny decoder: cached = uncached, equal to transformers' Llama and to a loop that shares no line with it."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlab.attention import offset_mask
from kvlab.caches import Cache, ConcatCache, RingCache, SinkCache, StaticCache
from kvlab.decoder import DecoderConfig, TinyDecoder, generate, make_weights, rms_norm, swiglu
from kvlab.masks import window_mask

POSITIONS = ["rope", "learned", "alibi"]
PROMPT = np.array([3, 1, 4, 1, 5])
CHUNKS = st.lists(st.integers(0, 5), min_size=1, max_size=5).filter(sum)


def caches_of(model: TinyDecoder, kind: str) -> list[Cache]:
    c = model.config
    if kind == "static":
        return model.make_caches(lambda: StaticCache(c.n_kv_heads, 25, c.head_dim, model.dtype))
    return model.make_caches()


@pytest.mark.parametrize("kind", ["concat", "static"])
@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("dtype, tolerance", [(np.float64, 1e-12), (np.float32, 1e-4)])
@settings(max_examples=15)
@given(sizes=CHUNKS, heads=st.sampled_from([(1, 1), (2, 1), (4, 4), (8, 2)]), head_dim=st.sampled_from([2, 6]))
def test_any_chunking_equals_the_full_pass(kind, positions, dtype, tolerance, sizes, heads, head_dim):
    model = TinyDecoder(
        n_heads=heads[0], n_kv_heads=heads[1], head_dim=head_dim, n_layers=3, positions=positions, dtype=dtype
    )
    ids = np.random.default_rng(0).integers(0, 64, sum(sizes))
    caches = caches_of(model, kind)
    cached = np.concatenate([model(chunk, caches) for chunk in np.split(ids, np.cumsum(sizes)[:-1])])
    assert cached.dtype == dtype
    assert [len(cache) for cache in caches] == [sum(sizes)] * 3
    np.testing.assert_allclose(cached, model(ids), rtol=0, atol=tolerance)


def llama_of(model: TinyDecoder) -> Any:
    """transformers' LlamaForCausalLM with the weights of `model`, each matrix transposed to (out, in)."""
    torch = pytest.importorskip("torch", reason="the oracle is transformers' Llama, on torch")
    transformers = pytest.importorskip("transformers", reason="the oracle is transformers' Llama")
    c, w = model.config, model.weights
    config = transformers.LlamaConfig(
        vocab_size=c.vocab_size,
        hidden_size=c.d_model,
        intermediate_size=c.d_ff,
        num_hidden_layers=c.n_layers,
        num_attention_heads=c.n_heads,
        num_key_value_heads=c.n_kv_heads,
        head_dim=c.head_dim,
        rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": c.rope_base},
        tie_word_embeddings=True,
        attn_implementation="eager",
        bos_token_id=None,
        eos_token_id=None,
    )
    llama = transformers.LlamaForCausalLM(config).to(torch.float64).eval()
    state = {"model.embed_tokens.weight": w["embed"], "model.norm.weight": w["final_norm"]}
    state["lm_head.weight"] = w["embed"]
    names = {
        "attn_norm": "input_layernorm",
        "wq": "self_attn.q_proj",
        "wk": "self_attn.k_proj",
        "wv": "self_attn.v_proj",
        "wo": "self_attn.o_proj",
        "mlp_norm": "post_attention_layernorm",
        "w_gate": "mlp.gate_proj",
        "w_up": "mlp.up_proj",
        "w_down": "mlp.down_proj",
    }
    for i, layer in enumerate(w["layers"]):
        state |= {f"model.layers.{i}.{theirs}.weight": layer[ours].T for ours, theirs in names.items()}
    llama.load_state_dict({name: torch.tensor(value, dtype=torch.float64) for name, value in state.items()})
    return llama


@pytest.mark.parametrize("heads", [(4, 2), (8, 2), (8, 1), (4, 4)])
@pytest.mark.parametrize("rope_base", [10000.0, 500.0])
def test_equal_to_transformers_llama(heads, rope_base):
    """Logits, and the keys and values each layer stores, to 1e-5: transformers computes its angles in float32."""
    model = TinyDecoder(n_heads=heads[0], n_kv_heads=heads[1], n_layers=3, rope_base=rope_base)
    llama = llama_of(model)
    ids = np.random.default_rng(1).integers(0, 64, 17)
    import torch

    with torch.no_grad():
        theirs = llama(torch.from_numpy(ids)[None], use_cache=True)
    np.testing.assert_allclose(model(ids), theirs.logits[0].numpy(), rtol=0, atol=1e-5)
    for (k, v), layer in zip(model.keys_values(ids), theirs.past_key_values.layers, strict=True):
        np.testing.assert_allclose(k, layer.keys[0].numpy(), rtol=0, atol=1e-5)
        np.testing.assert_allclose(v, layer.values[0].numpy(), rtol=0, atol=1e-5)


def test_generates_what_transformers_generates():
    model = TinyDecoder()
    llama = llama_of(model)
    import torch

    theirs = llama.generate(torch.from_numpy(PROMPT)[None], max_new_tokens=20, do_sample=False, pad_token_id=0)
    assert generate(model, PROMPT, 20, model.make_caches()).tolist() == theirs[0].tolist()


def loop_logits(model: TinyDecoder, ids: list[int]) -> list[float]:
    """The last token's logits, from the papers' formulas with lists, `math` and one number at a time."""
    c, w = model.config, model.weights
    group = c.n_heads // c.n_kv_heads

    def times(row: list[float], matrix: np.ndarray) -> list[float]:
        return [sum(row[i] * float(matrix[i, j]) for i in range(len(row))) for j in range(matrix.shape[1])]

    def norm(row: list[float], gain: np.ndarray) -> list[float]:
        size = math.sqrt(sum(a * a for a in row) / len(row) + 1e-6)
        return [a / size * float(g) for a, g in zip(row, gain, strict=True)]

    def head(row: list[float], h: int, position: int, turn: bool) -> list[float]:
        part = row[h * c.head_dim : (h + 1) * c.head_dim]
        if not turn or c.positions != "rope":
            return part
        half, out = c.head_dim // 2, list(part)
        for i in range(half):
            angle = position / c.rope_base ** (2 * i / c.head_dim)
            out[i] = part[i] * math.cos(angle) - part[i + half] * math.sin(angle)
            out[i + half] = part[i + half] * math.cos(angle) + part[i] * math.sin(angle)
        return out

    x = [[float(a) for a in w["embed"][token]] for token in ids]
    if c.positions == "learned":
        x = [[a + float(b) for a, b in zip(row, w["positions"][t], strict=True)] for t, row in enumerate(x)]
    for layer in w["layers"]:
        h = [norm(row, layer["attn_norm"]) for row in x]
        q, k, v = ([times(row, layer[name]) for row in h] for name in ("wq", "wk", "wv"))
        for t in range(len(ids)):
            out: list[float] = []
            for a in range(c.n_heads):
                slope = 2 ** (-8 * (a + 1) / c.n_heads) if c.positions == "alibi" else 0.0
                mine = head(q[t], a, t, turn=True)
                scores = []
                for s in range(t + 1):
                    key = head(k[s], a // group, s, turn=True)
                    dot = sum(p * r for p, r in zip(mine, key, strict=True))
                    scores.append(dot / math.sqrt(c.head_dim) - slope * (t - s))
                total = sum(math.exp(score) for score in scores)
                values = [head(v[s], a // group, s, turn=False) for s in range(t + 1)]
                for i in range(c.head_dim):
                    out.append(sum(math.exp(scores[s]) / total * values[s][i] for s in range(t + 1)))
            x[t] = [a + b for a, b in zip(x[t], times(out, layer["wo"]), strict=True)]
        for t in range(len(ids)):
            row = norm(x[t], layer["mlp_norm"])
            gate, up = times(row, layer["w_gate"]), times(row, layer["w_up"])
            hidden = [g / (1 + math.exp(-g)) * u for g, u in zip(gate, up, strict=True)]
            x[t] = [a + b for a, b in zip(x[t], times(hidden, layer["w_down"]), strict=True)]
    return times(norm(x[-1], w["final_norm"]), w["embed"].T)


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("heads", [(4, 2), (2, 2), (8, 1)])
def test_equal_to_a_loop_written_from_the_formulas(positions, heads):
    model = TinyDecoder(positions=positions, n_heads=heads[0], n_kv_heads=heads[1], head_dim=6, seed=4)
    ids = [7, 7, 0, 63, 12, 30]
    np.testing.assert_allclose(model(np.array(ids))[-1], loop_logits(model, ids), rtol=0, atol=1e-12)


FROZEN = {
    "rope": [-2.06618371, 2.746154952, 1.985564685],
    "learned": [-1.740549062, 1.921475907, 1.379755803],
    "alibi": [-2.131689777, 2.721862423, 1.949931824],
}


@pytest.mark.parametrize("positions", POSITIONS)
def test_frozen_logits(positions):
    """The loop above gave these for seed 0; they hold weights and arithmetic together."""
    model = TinyDecoder(positions=positions)
    np.testing.assert_allclose(model(PROMPT)[-1, [0, 16, 63]], FROZEN[positions], rtol=0, atol=1e-8)


@pytest.mark.parametrize("positions", POSITIONS)
@settings(max_examples=15)
@given(prompt=st.lists(st.integers(0, 63), min_size=1, max_size=6), n_new=st.integers(0, 8))
def test_generate_with_caches_gives_the_same_tokens(positions, prompt, n_new):
    model, ids = TinyDecoder(positions=positions), np.array(prompt)
    caches, given_ids = model.make_caches(), ids.copy()
    reply = generate(model, ids, n_new, caches)
    np.testing.assert_array_equal(reply, generate(model, ids, n_new))
    np.testing.assert_array_equal(reply[: len(ids)], given_ids)
    np.testing.assert_array_equal(ids, given_ids)
    assert len(reply) == len(ids) + n_new
    assert len(caches[0]) == (len(reply) - 1 if n_new else 0)  # the last token is never fed in


@pytest.mark.parametrize("cached, fed", [(True, [5, 1, 1, 1]), (False, [5, 6, 7, 8])])
def test_generate_calls_the_model_once_a_token(cached, fed):
    model = TinyDecoder()
    trace = model.make_trace()
    generate(model, PROMPT, 4, model.make_caches() if cached else None, trace)
    assert [step.n_new for step in trace.steps] == fed


def test_replies_frozen():
    replies = {p: generate(TinyDecoder(positions=p), PROMPT, 8)[5:].tolist() for p in POSITIONS}
    assert replies == {
        "rope": [16, 29, 29, 51, 51, 51, 51, 32],
        "learned": [44, 51, 51, 51, 51, 48, 63, 63],
        "alibi": [16, 29, 29, 51, 51, 1, 44, 16],
    }


@pytest.mark.parametrize("positions", POSITIONS)
def test_the_reply_depends_on_the_context(positions):
    """Were it the last token alone, no lost or doubled cache row could ever be seen in a reply."""
    model = TinyDecoder(positions=positions)
    replies = {tuple(generate(model, np.array([a, b, 5]), 6)[3:].tolist()) for a in range(4) for b in range(4)}
    assert len(replies) >= 8


def test_the_caches_hold_each_layers_own_keys_and_values():
    model = TinyDecoder(n_layers=3)
    caches = model.make_caches()
    model(PROMPT[:2], caches)
    model(PROMPT[2:], caches)
    rows = [cache.append(np.zeros((2, 0, 8)), np.zeros((2, 0, 8))) for cache in caches]
    for cached, full in zip(rows, model.keys_values(PROMPT), strict=True):
        for ours, theirs in zip(cached, full, strict=True):
            assert ours.shape == (2, 5, 8)
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12)
    assert not np.allclose(rows[0][0], rows[1][0])
    assert not np.allclose(rows[0][0], rows[0][1])


def test_keys_values_under_another_mask():
    """The first layer's rows know no other token; deeper rows do, and an explicit causal mask is the default."""
    model, everything = TinyDecoder(), np.ones((5, 5), bool)
    causal, open_ = model.keys_values(PROMPT, offset_mask(5, 5)), model.keys_values(PROMPT, everything)
    np.testing.assert_array_equal(causal[1][0], model.keys_values(PROMPT)[1][0])
    np.testing.assert_array_equal(causal[0][0], open_[0][0])
    assert not np.allclose(causal[1][0], open_[1][0])


def test_positions_and_mask_default_to_the_offset():
    for positions in POSITIONS:
        model = TinyDecoder(positions=positions)
        caches, told = model.make_caches(), model.make_caches()
        for part in (PROMPT[:2], PROMPT[2:]):
            n_past = len(caches[0])
            given_ = {
                "positions": np.arange(n_past, n_past + len(part)),
                "mask": offset_mask(len(part), n_past + len(part)),
            }
            np.testing.assert_array_equal(model(part, caches), model(part, told, **given_))


def test_given_positions_are_used():
    """Learned: the same as a table whose rows were moved. RoPE: a shift moves the stored keys and no output."""
    model, moved, at = TinyDecoder(positions="learned"), TinyDecoder(positions="learned"), np.array([9, 0, 255, 0, 3])
    moved.weights["positions"][:5] = model.weights["positions"][at]
    np.testing.assert_allclose(model(PROMPT, positions=at), moved(PROMPT), rtol=0, atol=1e-12)
    assert not np.allclose(model(PROMPT, positions=at), model(PROMPT))
    model, caches = TinyDecoder(), TinyDecoder().make_caches()
    shifted = model(PROMPT, caches, positions=np.arange(5) + 3)
    np.testing.assert_allclose(shifted, model(PROMPT), rtol=0, atol=1e-12)
    k, _ = caches[0].append(np.zeros((2, 0, 8)), np.zeros((2, 0, 8)))
    assert not np.allclose(k, model.keys_values(PROMPT)[0][0])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("positions", POSITIONS)
def test_one_dtype_throughout(dtype, positions):
    model = TinyDecoder(dtype=dtype, positions=positions)
    caches = model.make_caches()
    assert model(PROMPT, caches).dtype == dtype
    assert model(PROMPT[:0], caches).shape == (0, 64)
    assert all(a.dtype == dtype for pair in model.keys_values(PROMPT) for a in pair)
    assert all(cache.n_bytes == 2 * 2 * 5 * 8 * np.dtype(dtype).itemsize for cache in caches)


def test_weights_come_from_the_seed():
    config = DecoderConfig(positions="learned")
    first, again, other = make_weights(config), make_weights(config), make_weights(config, seed=1)
    for name in ("embed", "positions", "final_norm"):
        np.testing.assert_array_equal(first[name], again[name])
        assert not np.array_equal(first[name], other[name])
    assert first["positions"].shape == (256, 32)
    assert "positions" not in make_weights(DecoderConfig())
    assert {name: w.shape for name, w in first["layers"][1].items()} == {
        "attn_norm": (32,),
        "wq": (32, 32),
        "wk": (32, 16),
        "wv": (32, 16),
        "wo": (32, 32),
        "mlp_norm": (32,),
        "w_gate": (32, 48),
        "w_up": (32, 48),
        "w_down": (48, 32),
    }


def test_n_params():
    per_layer = 32 + 32 * 32 + 2 * 32 * 16 + 32 * 32 + 32 + 3 * 32 * 48
    assert TinyDecoder().n_params == 64 * 32 + 2 * per_layer + 32
    assert TinyDecoder(positions="learned").n_params == TinyDecoder().n_params + 256 * 32


def test_parts_equal_torch():
    torch = pytest.importorskip("torch", reason="the oracle is torch.nn.functional")
    rng = np.random.default_rng(0)
    x, gain, gate, up, down = (rng.standard_normal(s) for s in ((5, 6), (6,), (6, 9), (6, 9), (9, 6)))
    tx, tgain, tgate, tup, tdown = (torch.from_numpy(a) for a in (x, gain, gate, up, down))
    theirs = torch.nn.functional.rms_norm(tx, (6,), tgain, eps=1e-6).numpy()
    np.testing.assert_allclose(rms_norm(x, gain), theirs, rtol=0, atol=1e-12)
    theirs = ((torch.nn.functional.silu(tx @ tgate) * (tx @ tup)) @ tdown).numpy()
    np.testing.assert_allclose(swiglu(x, gate, up, down), theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "ids, options, message",
    [
        ([[1, 2]], {}, r"ids: expected shape \(n_new,\), got \(1, 2\)"),
        ([1.0, 2.0], {}, "ids: expected integers, got float64"),
        ([1, 64], {}, "ids must be 0 to 63, got 1 to 64"),
        ([-1, 3], {}, "ids must be 0 to 63, got -1 to 3"),
        ([1, 2], {"positions": [5]}, r"positions: expected shape \(n_new=2,\), got \(1,\)"),
        ([1, 2], {"positions": [0.0, 1.0]}, "positions: expected integers, got float64"),
        ([1, 2], {"positions": [0, 256]}, "positions must be 0 to 255, the rows of the learned table, got 0 to 256"),
        ([1, 2], {"mask": [[True, True], [True, True]]}, r"mask: .* got \(2, 2\): n_total is 2"),
        ([1, 2], {"mask": [[True] * 5, [False] * 5]}, "mask: row 1 is all False"),
    ],
)
def test_a_refused_call_leaves_caches_and_trace_as_they_were(ids, options, message, no_shape_hook):
    model = TinyDecoder(positions="learned")
    caches, trace = model.make_caches(), model.make_trace()
    model(PROMPT[:3], caches, trace=trace)
    with pytest.raises(ValueError, match=message):
        model(np.array(ids), caches, trace=trace, **{name: np.array(value) for name, value in options.items()})
    assert [len(cache) for cache in caches] == [3, 3]
    assert len(trace.steps) == 1


def test_caches_must_be_one_a_layer_and_equally_long(no_shape_hook):
    model = TinyDecoder()
    with pytest.raises(ValueError, match="expected one a layer, 2, got 1"):
        model(PROMPT, [ConcatCache(2, 8)])
    caches = model.make_caches()
    caches[1].append(np.zeros((2, 3, 8)), np.zeros((2, 3, 8)))
    with pytest.raises(ValueError, match=r"equally many tokens, got lengths \[0, 3\]"):
        model(PROMPT, caches)
    full = model.make_caches(lambda: StaticCache(2, 4, 8))
    with pytest.raises(ValueError, match="0 of 4 slots are filled, 5 more do not fit"):
        model(PROMPT, full)
    assert [len(cache) for cache in full] == [0, 0]


def test_bad_sizes_and_prompts_are_refused(no_shape_hook):
    with pytest.raises(ValueError, match="n_heads must be a multiple of n_kv_heads, got 4 query heads and 3 KV heads"):
        TinyDecoder(n_kv_heads=3)
    with pytest.raises(ValueError, match="the prompt is empty"):
        generate(TinyDecoder(), PROMPT[:0], 3)
    with pytest.raises(ValueError, match="n_new: expected a whole number of at least 0, got -1"):
        generate(TinyDecoder(), PROMPT, -1)


def test_alibi_is_not_run_on_rows_with_a_gap() -> None:
    model = TinyDecoder(positions="alibi")
    c = model.config
    caches = [SinkCache(c.n_kv_heads, c.head_dim, n_sinks=1, window=2) for _ in range(c.n_layers)]
    with pytest.raises(ValueError, match="ALiBi counts distance in rows"):
        model(np.arange(3), caches)
    assert {len(cache) for cache in caches} == {0}


@pytest.mark.parametrize("positions", POSITIONS)
def test_a_window_equals_the_full_pass_with_a_window_mask(positions: str) -> None:
    model, ids = TinyDecoder(positions=positions), np.arange(9) % 5
    c = model.config
    caches = [RingCache(c.n_kv_heads, c.head_dim, window=3) for _ in range(c.n_layers)]
    chunked = np.concatenate([model(chunk, caches) for chunk in np.split(ids, [4, 5])])
    np.testing.assert_allclose(chunked, model(ids, mask=window_mask(9, 9, 3)), rtol=0, atol=1e-12)
