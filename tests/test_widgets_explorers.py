"""The explorers' numbers are those of the package, or of an independent count; wrong input is drawn or refused."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_widgets import SHARED, texts

from kvlab.attention import offset_mask, repeat_kv
from kvlab.decoder import TinyDecoder
from kvlab.roofline import HARDWARE, Hardware
from kvlab.sizes import bytes_per_token, config_names, fit, load_config, price
from kvlab.widgets import BlockTable, HeadMap, MaskDiagram, MemoryExplorer, PositionDrift, RooflineExplorer
from kvlab.widgets.block_replay import replay
from kvlab.widgets.explorer import Explorer
from kvlab.widgets.head_map import read_heads

GIB = 2**30


def tile(x: np.ndarray, n_heads: int) -> np.ndarray:
    return np.tile(x, (n_heads // len(x), 1, 1))


EXPLORERS = {
    "heads": lambda: HeadMap(8, 2),
    "memory": lambda: MemoryExplorer(),
    "roofline": lambda: RooflineExplorer(),
    "drift": lambda: PositionDrift({"a": [0.0, 1.0], "b": [0.0, 0.0]}),
    "blocks": lambda: BlockTable(SHARED, 12, 4),
}


# What every explorer does


@pytest.mark.parametrize("make", EXPLORERS.values(), ids=EXPLORERS)
def test_every_option_of_every_control_can_be_set_and_is_drawn(make: Any) -> None:
    """What the page offers, Python takes, and the picture, the words and the control follow."""
    explorer: Explorer = make()
    assert {c["name"] for c in explorer.data["controls"]} >= set(explorer.arrows)
    for given_control in list(explorer.data["controls"]):
        for option in given_control["options"]:
            explorer.set_state({given_control["name"]: option})
            assert getattr(explorer, given_control["name"]) == option
            assert explorer.data["said"] == explorer._said()
            assert explorer.data["alt"] == explorer.alt == repr(explorer)
            for tag, attributes, text in explorer.data["shapes"]:
                assert tag in ("rect", "path", "circle", "text")
                assert not re.search("nan|inf", str(attributes.get("d", "")))
                assert bool(text) == (tag == "text")


@pytest.mark.parametrize("make", EXPLORERS.values(), ids=EXPLORERS)
def test_every_place_names_a_control_and_one_of_its_options(make: Any) -> None:
    explorer: Explorer = make()
    options = {c["name"]: len(c["options"]) for c in explorer.data["controls"]}
    for x, y, width, height, name, index in explorer.data["places"]:
        assert 0 <= index < options[name] and width > 0 and height > 0
        assert 0 <= x + width / 2 <= explorer.data["size"][0] and 0 <= y <= explorer.data["size"][1]


@pytest.mark.parametrize("make", EXPLORERS.values(), ids=EXPLORERS)
def test_the_twin_says_what_the_page_shows(make: Any) -> None:
    explorer: Explorer = make()
    assert texts(explorer.to_svg()) == [text for tag, _, text in explorer.data["shapes"] if tag == "text"]


# HeadMap


@given(st.sampled_from([1, 2, 4, 6, 8, 12]), st.data())
def test_the_map_of_a_function_is_that_of_the_attention_it_feeds(n_heads: int, data: st.DataObject) -> None:
    """Oracle: which KV heads change a query head's output when they change."""
    n_kv_heads = data.draw(st.sampled_from([n for n in range(1, n_heads + 1) if n_heads % n == 0]))
    for spread in (repeat_kv, tile):
        reads = read_heads(spread, n_heads, n_kv_heads)
        x = np.zeros((n_kv_heads, 3, 2))
        for k in range(n_kv_heads):
            changed = x.copy()
            changed[k] = 1
            moved = np.flatnonzero(np.abs(spread(changed, n_heads)).sum(axis=(1, 2)))
            assert moved.tolist() == [i for i in range(n_heads) if reads[i] == k]


def test_a_tiled_map_is_drawn_as_it_is_and_its_wrong_heads_are_counted() -> None:
    heads = HeadMap(8, 2, spread=tile)
    assert heads.reads == [0, 1, 0, 1, 0, 1, 0, 1]
    assert "4 of 8 read another KV head than interleaved." in heads.alt
    heads.head = 3
    assert "Query head 3 reads KV head 1, with 1, 5, 7. It should read KV head 0." in heads._said()
    dashed = [a["d"].count("M") for tag, a, _ in heads.data["shapes"] if tag == "path" and "stroke-dasharray" in a]
    assert dashed == [4, 1], "four wrong lines, and the one looked at again"
    heads.order = "interleave"
    assert heads.reads == [0, 0, 0, 0, 1, 1, 1, 1] and "another" not in heads.alt


def test_bytes_are_those_of_the_formula() -> None:
    """Lesson 05: 128 bytes a token for 2 layers x 2 KV heads x 8 at 16 bits, so 64 a layer."""
    heads = HeadMap(4, 2, head_dim=8)
    assert heads.alt.endswith("64 bytes a token and layer; with 4 KV heads (MHA) 128, with 1 (MQA) 32.")
    assert "4 bytes a token" in HeadMap(1, 1, head_dim=4, bytes_per_element=0.5).alt


def test_a_function_that_fails_later_says_so_and_recovers() -> None:
    def only_two(x: np.ndarray, n_heads: int) -> np.ndarray:
        if len(x) != 2:
            raise NotImplementedError("only_two: two heads only")
        return repeat_kv(x, n_heads)

    heads = HeadMap(4, 2, spread=only_two)
    heads.n_kv_heads = 1
    assert heads.alt == "No map of 4 query heads over 1: NotImplementedError: only_two: two heads only"
    assert heads.alt in texts(heads.to_svg()) and heads.data["said"] == heads.alt
    heads.n_kv_heads = 2
    assert heads.reads == [0, 0, 1, 1]


# MemoryExplorer


@pytest.mark.parametrize("name", config_names())
def test_a_config_is_priced_as_the_package_prices_it(name: str) -> None:
    explorer = MemoryExplorer(name, batch=2, seq_len=1000)
    assert explorer.per_token == bytes_per_token(load_config(name))
    assert explorer.cache_bytes == 2000 * explorer.per_token
    assert f"{explorer.per_token:,} bytes a token" in explorer.alt


def test_known_sizes() -> None:
    """32 layers x 128 x fp16 at 4,096 tokens: 2, 0.5 and 0.0625 GiB for 32, 8 and 1 KV heads."""
    explorer = MemoryExplorer("llama-3.1-8b", seq_len=4096)
    for n_kv_heads, gib in ((32, 2), (8, 0.5), (1, 0.0625)):
        explorer.n_kv_heads = n_kv_heads
        assert explorer.cache_bytes == gib * GIB
    explorer.dtype = "q4_0"  # 18 bytes for 32 numbers, against 64 in f16
    assert explorer.cache_bytes == GIB // 16 * 18 // 64


def cases() -> list[Any]:
    found = json.loads((Path(__file__).parent / "cases" / "cache_sizes.json").read_text())["cases"]
    return [pytest.param(case, id=str(i)) for i, case in enumerate(found)]


@pytest.mark.parametrize("case", cases())
def test_it_starts_from_any_config(case: dict[str, Any]) -> None:
    explorer = MemoryExplorer(case["config"], weight_bytes=10**10, batch=3, seq_len=5000)
    need = price(case["config"], tokens=5000, sequences=3)
    assert explorer.cache_bytes == need.kv_bytes + (need.state_bytes or 0)
    assert explorer.per_token == need.bytes_per_token
    assert explorer.crossover == fit(need, 10**10).crossover_tokens
    assert f"{need.bytes_per_token:,} bytes" in explorer.alt and explorer.to_svg().startswith("<svg")


GPT_OSS = {
    "model_type": "gpt_oss", "num_hidden_layers": 36, "num_attention_heads": 64, "num_key_value_heads": 8,
    "head_dim": 64, "sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"] * 18,
}  # fmt: skip


def test_layers_of_two_kinds_keep_their_number_and_share_their_heads() -> None:
    explorer = MemoryExplorer(GPT_OSS, weight_bytes=65_000_000_000, seq_len=8192)
    a_layer = 2 * 8 * 64 * 2
    assert explorer.cache_bytes == 18 * a_layer * (8192 + 128) and explorer.per_token == 18 * a_layer
    assert "18 sliding layers of 128 tokens x 8 KV heads x 64 and 18 full layers x 8 KV heads x 64" in explorer.alt
    assert {c["name"] for c in explorer.data["controls"]} >= {"n_kv_heads", "head_dim"}
    assert "n_layers" not in {c["name"] for c in explorer.data["controls"]}
    for change in (lambda: setattr(explorer, "n_layers", 4), lambda: explorer.set_state({"n_layers": 4})):
        with pytest.raises(ValueError, match="n_layers: the layers of this model have no one such number: 18 sliding"):
            change()
    explorer.n_kv_heads = 4
    assert explorer.cache_bytes == 18 * a_layer // 2 * (8192 + 128)


def test_a_window_on_every_layer_never_overtakes_the_weights() -> None:
    windowed = {**GPT_OSS, "layer_types": ["sliding_attention"] * 36}
    explorer = MemoryExplorer(windowed, weight_bytes=10**10, seq_len=200)
    assert explorer.crossover is None and explorer.per_token == 0
    assert "never larger than the weights" in explorer.alt
    assert "no crossover; now 200 (round)" in texts(explorer.to_svg())


def test_a_format_whose_blocks_do_not_fit_is_neither_offered_nor_taken() -> None:
    explorer = MemoryExplorer("llama-3.1-8b")
    explorer.dtype = "q8_0"
    with pytest.raises(ValueError, match="head_dim: dtype q8_0: 32 values make a block, a key of 80"):
        explorer.head_dim = 80
    offered = {c["name"]: c["options"] for c in explorer.data["controls"]}
    assert 80 not in offered["head_dim"] and 96 in offered["head_dim"] and "fp8_ds_mla" not in offered["dtype"]


@given(st.integers(1, 64), st.integers(1, 200_000))
def test_the_crossover_is_the_first_context_with_a_larger_cache(batch: int, seq_len: int) -> None:
    explorer = MemoryExplorer("smollm2-135m", batch=batch, seq_len=seq_len)
    larger = explorer.cache_bytes > explorer.weight_bytes
    assert larger == (seq_len >= explorer.crossover)


def test_what_does_not_fit_is_said_and_hatched() -> None:
    explorer = MemoryExplorer("llama-3.1-8b", batch=64, seq_len=32_768)
    assert "196.45 GiB too much." in explorer.alt and "14 sequences of 32,768 tokens fit" in explorer.alt
    assert "196.45 GiB too much" in texts(explorer.to_svg())
    explorer.batch = 1
    assert "too much" not in explorer.alt


# RooflineExplorer


def test_the_floor_of_a_known_decode() -> None:
    """An H100 reads 15.01 GB of weights and 1.07 GB of cache at 3.35 TB/s: 4.80 ms; independent arithmetic."""
    explorer = RooflineExplorer("llama-3.1-8b", seq_len=8192)
    weights, cache = 2 * 7_504_924_672, 131_072 * 8192
    assert explorer.decode.n_bytes == weights + cache
    assert explorer.decode.floor_ms == pytest.approx(1000 * (weights + cache) / 3.35e12)
    assert explorer.decode.by_memory and not explorer.prefill.by_memory


def test_batch_moves_decode_up_the_slope_and_never_over_the_roof() -> None:
    explorer = RooflineExplorer("llama-3.1-8b", seq_len=1024)
    before = explorer.decode.intensity
    explorer.batch = 64
    assert explorer.decode.intensity > 10 * before
    for name, hardware in HARDWARE.items():
        explorer.device = name
        for at in (explorer.decode, explorer.prefill):
            assert at.flops_per_s <= hardware.bf16_flops_per_s
            assert at.flops_per_s <= at.intensity * hardware.bandwidth_bytes_per_s * (1 + 1e-12)


def test_a_measured_device_is_offered() -> None:
    mine = Hardware(1e12, 5e10, 16e9, "make bench")
    explorer = RooflineExplorer("smollm2-135m", device="measured", measured=mine)
    assert "ridge at 20 FLOPs a byte" in explorer.alt
    assert "It does not fit" in RooflineExplorer("llama-3.1-70b", "L4").alt


# PositionDrift


def test_distances_are_measured_from_the_uncached_run() -> None:
    """The tiny decoder at right positions stays within 1e-12, at position 0 it does not."""
    model, ids = TinyDecoder(), np.arange(20)
    full, runs = model(ids), {}
    for name, position in (("followed", None), ("position 0", 0)):
        caches = model.make_caches()
        model(ids[:8], caches)
        at = [t if position is None else position for t in range(8, 20)]
        steps = [model(ids[t : t + 1], caches, positions=np.array([p])) for t, p in zip(range(8, 20), at, strict=True)]
        runs[name] = np.concatenate(steps)
    drift = PositionDrift(runs, reference=full[8:])
    assert drift.distances["followed"].max() < 1e-12 < 0.1 < drift.distances["position 0"].max()
    assert drift.distances["position 0"][3] == np.abs(runs["position 0"][3] - full[11]).max()
    drift.step = 3
    assert f"position 0 {drift.distances['position 0'][3]:.3g}" in drift._said()


def test_a_broken_run_is_drawn_as_one_that_broke() -> None:
    drift = PositionDrift({"a": [0.0, 1.0, np.nan, 2.0], "b": [np.inf] * 4})
    assert "a: 0 at step 0, 2 at step 3, nan at step 2. b: inf at step 0, inf at step 3, inf at step 0." in drift.alt
    assert sum("crosses: not a number" in text for text in texts(drift.to_svg())) == 2


def test_many_steps_are_thinned_and_it_is_said() -> None:
    assert "one of 4 steps is drawn" in texts(PositionDrift({"a": np.arange(2000)}).to_svg())


# BlockTable


def test_counts_and_free_list_follow_the_events() -> None:
    table = BlockTable(SHARED, n_blocks=6, block_size=4)
    expected = [  # step, tables, counts, free
        (0, {}, [0] * 6, [0, 1, 2, 3, 4, 5]),
        (3, {"a": [0, 1]}, [1, 1, 0, 0, 0, 0], [2, 3, 4, 5]),
        (4, {"a": [0, 1], "b": [0, 1]}, [2, 2, 0, 0, 0, 0], [2, 3, 4, 5]),
        (6, {"a": [0, 5], "b": [0, 1]}, [2, 1, 0, 0, 0, 1], [2, 3, 4]),
        (8, {"b": [0, 1]}, [1, 1, 0, 0, 0, 0], [2, 3, 4, 5]),
    ]
    for step, tables, counts, free in expected:
        table.step = step
        assert (table.now.tables, table.now.counts, table.now.free) == (tables, counts, free)


@given(st.lists(st.sampled_from(["new", "grow", "fork", "end"]), min_size=1, max_size=25))
def test_a_count_is_always_the_number_of_tables_that_hold_the_block(steps: list[str]) -> None:
    """Oracle: the tables themselves, counted anew after every event."""
    events: list[dict[str, Any]] = []
    alive: list[str] = []
    for i, kind in enumerate(steps):
        if kind == "new" or not alive:
            alive.append(f"s{i}")
            events.append({"do": "allocate", "sequence": f"s{i}", "block": i})
        elif kind == "grow":
            events.append({"do": "allocate", "sequence": alive[0], "block": i})
        elif kind == "fork":
            events.append({"do": "fork", "sequence": alive[-1], "to": f"f{i}"})
            alive.append(f"f{i}")
        else:
            events.append({"do": "release", "sequence": alive.pop(0)})
    for moment in replay(events, n_blocks=25, block_size=2):
        held = [block for table in moment.tables.values() for block in table]
        assert moment.counts == [held.count(block) for block in range(25)]
        assert moment.problems == []


@pytest.mark.parametrize(
    ("event", "problem"),
    [
        ({"do": "write", "sequence": "b", "n_tokens": 1}, "block 1 is written while a and b hold it: copy it first"),
        ({"do": "allocate", "sequence": "b", "block": 0}, "block 0 is handed out while a and b hold it"),
        ({"do": "copy", "sequence": "b", "index": 1, "block": 0}, "block 0 is handed out while a and b hold it"),
        ({"do": "write", "sequence": "b", "n_tokens": 3}, "9 tokens do not fit in 2 blocks of 4"),
    ],
)
def test_what_a_right_pool_never_does_is_drawn_and_named(event: dict[str, Any], problem: str) -> None:
    table = BlockTable([*SHARED[:4], event], n_blocks=12, block_size=4)
    assert any(problem in found for found in table.problems)
    assert f"WRONG at event 5: {problem}" in table.alt
    assert any("event 5" in text for text in texts(table.to_svg()))
    table.step = 4
    assert table.problems == [] and "WRONG" not in table.alt


def test_more_blocks_than_can_be_drawn_are_said() -> None:
    events = [{"do": "allocate", "sequence": f"s{i // 20}", "block": i} for i in range(240)]
    said = " ".join(texts(BlockTable(events, n_blocks=300, block_size=16).to_svg()))
    assert "Drawn: the first 60 blocks and the first 8 of 12 sequences." in said
    assert "+13" in said


# MaskDiagram by name


def brute(kind: str, n_new: int, n_total: int, **sizes: int) -> list[list[bool]]:
    """Each rule written out for one query and one key."""

    def sees(q: int, k: int) -> bool:
        if k > q:
            return False
        if kind == "window":
            return q - k < sizes["window"]
        if kind == "sinks":
            return q - k < sizes["window"] or k < sizes["n_sinks"]
        if kind == "left padding":
            return k >= sizes["n_pad"] or k == q
        if kind == "packed":
            return q // sizes["length"] == k // sizes["length"]
        return True

    return [[sees(q, k) for k in range(n_total)] for q in range(n_total - n_new, n_total)]


@given(st.integers(1, 6), st.integers(0, 6), st.integers(1, 8), st.integers(0, 4))
def test_named_masks_follow_their_rule(n_new: int, n_past: int, size: int, other: int) -> None:
    n_total = n_new + n_past
    cases: list[tuple[str, dict[str, int]]] = [
        ("causal", {}),
        ("window", {"window": size}),
        ("sinks", {"window": size, "n_sinks": other}),
        ("left padding", {"n_pad": min(other, n_total - 1)}),
        ("packed", {"length": size}),
    ]
    for kind, sizes in cases:
        diagram = MaskDiagram(kind, expected=brute(kind, n_new, n_total, **sizes), **sizes)
        assert diagram.data["n_differ"] == 0
        assert (diagram.data["sizes"], diagram.sizes) == (sizes, sizes)


def test_a_size_of_its_own_gets_a_slider_and_reaches_the_function() -> None:
    def mine(n_new: int, n_total: int, window: int) -> np.ndarray:
        at = np.arange(n_total)
        return offset_mask(n_new, n_total) & (at[n_total - n_new :, None] - at <= window)  # one too wide

    diagram = MaskDiagram(mine, expected="window", n_new=3, n_total=8, window=4)
    assert diagram.data["n_differ"] == 3 and ", window 4: " in diagram.alt
    diagram.set_state({"sizes": {"window": 6}})
    assert diagram.data["sizes"] == {"window": 6} and diagram.data["n_differ"] == 2
    diagram.sizes = {"window": 0}
    assert diagram.alt.startswith("No mask for 3 new and 8 in all, window 0: ValueError: window: expected a whole")
    diagram.sizes = {"window": 4}
    assert diagram.data["n_differ"] == 3


# Refusals


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: HeadMap(8, 3), "8 query heads and 3 KV heads"),
        (lambda: HeadMap(0, 1), "n_heads: expected a whole number of at least 1, got 0"),
        (lambda: HeadMap(4, 2, spread="reverse"), "order: expected one of interleave, tile, got 'reverse'"),
        (lambda: HeadMap(4, 2, spread=[0, 0, 1]), r"spread: expected shape \(n_heads=4,\), got \(3,\)"),
        (lambda: HeadMap(4, 2, spread=[0, 0, 1, 2]), "spread: expected KV heads 0 to 1, got 2"),
        (lambda: HeadMap(4, 2, spread=[0, 0, 1, np.nan]), "spread: expected KV heads 0 to 1, got nan"),
        (lambda: HeadMap(4, 2, spread=lambda x, n: x), r"spread's result: .* got \(2, 2, 4\)"),
        (lambda: HeadMap(4, 2, spread=lambda x, n: x.reshape(4, 1, 4).repeat(2, 1)[[0, 1, 0, 2]] * [0, 1, 2, 3]),
         "a head of the result holds numbers of several KV heads"),
        (lambda: HeadMap(4, 2, bytes_per_element=0), "bytes_per_element: expected a number above 0, got 0"),
        (lambda: MemoryExplorer("gpt-5"), "no config named 'gpt-5'"),
        (lambda: MemoryExplorer({"head_dim": 4}), "num_hidden_layers is missing"),
        (lambda: MemoryExplorer(device="TPU"), "device: expected one of A100 80GB SXM, .* got 'TPU'"),
        (lambda: MemoryExplorer(GPT_OSS), r"weight_bytes: this config does not tell them .*: pass weight_bytes="),
        (lambda: MemoryExplorer(seq_len=0), "seq_len: expected a whole number of at least 1, got 0"),
        (lambda: RooflineExplorer(batch=0), "batch: expected a whole number of at least 1, got 0"),
        (lambda: RooflineExplorer(device="measured"), "got 'measured'"),
        (lambda: PositionDrift({}), "runs: expected 1 to 6 runs .* got 0"),
        (lambda: PositionDrift({"a": []}), r"a: expected at least one decode step, got shape \(0,\)"),
        (lambda: PositionDrift({"a": [1, 2], "b": [1]}), r"b: expected shape \(n_steps=2,\), got \(1,\)"),
        (lambda: PositionDrift({"a": [[1, 2]]}), r"a: expected shape \(n_steps,\), got \(1, 2\)"),
        (lambda: PositionDrift({"a": [-1.0]}), "a: a distance is at least 0, got -1.0"),
        (lambda: PositionDrift({"a": np.ones((1, 2))}, np.full((1, 2), np.nan)), "reference: .* got nan"),
        (lambda: PositionDrift({"a": [1]}, scale="square"), "scale: expected one of linear, logarithmic"),
        (lambda: BlockTable([], 4, 4), "events: expected a list of at least one event, got an empty list"),
        (lambda: BlockTable([{"do": "steal"}], 4, 4), r"events\[0\]: expected a dict whose 'do' is one of allocate"),
        (lambda: BlockTable([{"do": "write", "sequence": "a"}], 4, 4), r"events\[0\]: write lacks n_tokens"),
        (lambda: BlockTable([{"do": "allocate", "sequence": "a", "block": 4}], 4, 4), "blocks 0 to 3, got 4"),
        (lambda: BlockTable([{"do": "release", "sequence": "a"}], 4, 4), "there is no 'a', there are: none"),
        (lambda: BlockTable([{"do": "allocate", "sequence": "a", "block": 0}], 0, 4), "n_blocks: .* got 0"),
        (lambda: MaskDiagram("strange", n_new=1, n_total=2), "mask: no mask is called 'strange', there are: causal"),
        (lambda: MaskDiagram("causal", n_new=1, n_total=2, window=1), "window: neither mask nor expected"),
        (lambda: MaskDiagram("window", n_new=1, n_total=2, window=0), "window: expected a whole number of at least 1"),
        (lambda: MaskDiagram("left padding", n_new=1, n_total=2, n_pad=2), "n_pad: 2 pads leave no token of 2"),
    ],
)  # fmt: skip
def test_what_cannot_be_drawn_is_refused(no_shape_hook: None, make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("name", "trait", "value"),
    [
        ("heads", "n_kv_heads", 3), ("heads", "head", 8), ("heads", "order", "yours"),
        ("memory", "batch", 0), ("memory", "dtype", "int3"), ("memory", "device", "TPU"),
        ("roofline", "seq_len", -1), ("roofline", "device", "measured"),
        ("drift", "step", 2), ("drift", "scale", ""), ("blocks", "step", 9), ("blocks", "step", -1),
    ],
)  # fmt: skip
def test_a_value_out_of_range_is_refused_and_changes_nothing(name: str, trait: str, value: Any) -> None:
    explorer: Explorer = EXPLORERS[name]()
    before, drawn = getattr(explorer, trait), explorer.data
    with pytest.raises(ValueError, match=trait):
        setattr(explorer, trait, value)
    with pytest.raises(ValueError, match=trait):
        explorer.set_state({trait: value})
    assert getattr(explorer, trait) == before and explorer.data == drawn


@pytest.mark.parametrize("sizes", [{}, {"window": -1}, {"window": 1.5}, {"window": 2, "more": 1}])
def test_sizes_that_do_not_fit_are_refused(sizes: dict[str, Any]) -> None:
    diagram = MaskDiagram("window", n_new=2, n_total=3, window=2)
    with pytest.raises(ValueError, match=r"sizes|window"):
        diagram.set_state({"sizes": sizes})
    assert diagram.sizes == diagram.data["sizes"] == {"window": 2}
