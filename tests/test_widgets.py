"""The widgets draw a run's own numbers, right or wrong, and say the same at rest, in words and to Python."""

import re
import subprocess
import sys
from pathlib import Path
from shutil import copy, copytree, ignore_patterns
from typing import Any
from xml.etree import ElementTree
from zipfile import ZipFile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nbconvert import HTMLExporter
from nbformat import v4

from kvlab.attention import offset_mask
from kvlab.decoder import TinyDecoder, generate
from kvlab.trace import Trace
from kvlab.widgets import (
    BlockTable,
    CacheGrowth,
    HeadMap,
    MaskDiagram,
    MemoryExplorer,
    PositionDrift,
    RooflineExplorer,
)
from kvlab.widgets.cache_growth_sheet import AGAIN, IDLE, NEW, QUANTITIES, READ
from kvlab.widgets.mask_sheet import block_cells, key_text

ROOT = Path(__file__).resolve().parent.parent
WIDGETS = ROOT / "kvlab" / "widgets"
VIEW = "application/vnd.jupyter.widget-view+json"


def decoded(cached: bool, n_new: int = 4, n_prompt: int = 5) -> Trace:
    """A run of the tiny decoder: 2 layers, 2 KV heads of width 8, 16 bit."""
    model = TinyDecoder()
    trace = model.make_trace(2)
    generate(model, np.arange(n_prompt), n_new, model.make_caches() if cached else None, trace)
    return trace


def counted(steps: list[tuple[int, int, dict[str, int]]], n_layers: int = 1) -> Trace:
    """A trace by hand: (n_new, n_past, counts), the same in every layer."""
    trace = Trace(n_layers, n_kv_heads=1, head_dim=4, bytes_per_element=2)
    for n_new, n_past, counts in steps:
        trace.begin(n_new, n_past)
        for layer in range(n_layers):
            trace.count(layer, **counts)
    return trace


def long_run(n_layers: int, n_kv_heads: int, n_steps: int, cached: bool) -> Trace:
    trace = Trace(n_layers, n_kv_heads, head_dim=64, bytes_per_element=2)
    for past in range(n_steps):
        trace.begin(1 if cached else past + 1, past if cached else 0)
        for layer in range(n_layers):
            trace.count(layer, projected=1 if cached else past + 1, stored=int(cached), read=past + 1, scores=past + 1)
    return trace


WRONG = np.tril(np.ones((3, 7)))
# b is forked from a and writes a shared block without a copy; then the copy is made.
SHARED = [
    {"do": "allocate", "sequence": "a", "block": 0},
    {"do": "allocate", "sequence": "a", "block": 1},
    {"do": "write", "sequence": "a", "n_tokens": 6},
    {"do": "fork", "sequence": "a", "to": "b"},
    {"do": "write", "sequence": "b", "n_tokens": 1},
    {"do": "copy", "sequence": "a", "index": 1, "block": 5},
    {"do": "write", "sequence": "a", "n_tokens": 2},
    {"do": "release", "sequence": "a"},
]
MANY = [{"do": "allocate", "sequence": f"s{i // 20}", "block": i} for i in range(240)]
TWINS = {
    "growth": lambda: CacheGrowth(decoded(True), decoded(False)),
    "growth alone": lambda: CacheGrowth(decoded(True)),
    "growth, one position": lambda: CacheGrowth(decoded(True, n_new=1, n_prompt=1)),
    "growth, long": lambda: CacheGrowth(long_run(12, 8, 100, True), long_run(12, 8, 100, False)),
    "mask": lambda: MaskDiagram(offset_mask(3, 7)),
    "mask, one token": lambda: MaskDiagram(np.ones((1, 1))),
    "mask, wrong": lambda: MaskDiagram(WRONG, expected=offset_mask, labels=["<a>", "&", '"c"', *"defg"]),
    "mask, large": lambda: MaskDiagram(np.tril(np.ones((100, 300))), offset_mask),
    "mask, sinks": lambda: MaskDiagram("sinks", "window", n_new=8, n_total=12, window=4, n_sinks=2),
    "heads": lambda: HeadMap(8, 2, spread="tile"),
    "heads, one": lambda: HeadMap(1, 1),
    "heads, many": lambda: HeadMap(200, 100, spread=list(range(100)) * 2),
    "memory": lambda: MemoryExplorer("llama-3.1-8b"),
    "memory, too much": lambda: MemoryExplorer("llama-3.1-70b", batch=64, seq_len=131_072, device="L4"),
    "memory, least": lambda: MemoryExplorer({"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}, 0),
    "roofline": lambda: RooflineExplorer("llama-3.1-8b"),
    "roofline, least": lambda: RooflineExplorer("smollm2-135m", "L4", batch=1, seq_len=1),
    "roofline, most": lambda: RooflineExplorer("llama-3.1-70b", "B200 (HGX)", batch=4096, seq_len=10**6),
    "drift": lambda: PositionDrift({"<wrong> & slow": [0.0, 0.5, 1.25], "right": [0.0, 0.0, 1e-15]}),
    "drift, broken": lambda: PositionDrift({"a": [np.nan, 1, np.inf], "b": [np.nan] * 3}, scale="logarithmic"),
    "drift, long": lambda: PositionDrift({"a": np.arange(2000)}),
    "drift, one step": lambda: PositionDrift({"a": [0]}),
    "blocks": lambda: BlockTable(SHARED, n_blocks=12, block_size=4),
    "blocks, many": lambda: BlockTable(MANY, n_blocks=300, block_size=16),
}


@pytest.fixture(params=TWINS)
def widget(request: pytest.FixtureRequest) -> Any:
    return TWINS[request.param]()


def texts(svg: str) -> list[str]:
    return [e.text or "" for e in ElementTree.fromstring(svg).findall(".//{*}text")]


# What every widget leaves behind


def test_a_static_twin_is_an_svg_that_names_itself_and_needs_nothing_else(widget: Any) -> None:
    svg = widget.to_svg()
    root = ElementTree.fromstring(svg)
    assert root.get("role") == "img"
    assert root.get("aria-label") == widget.alt == root.findtext("{*}desc")
    assert root.findtext("{*}title")
    assert not re.search(r"\b(id|href|class|style)=|<style|<script|url\(", svg)
    assert re.findall(r"https?://[^\"]*", svg) == ["http://www.w3.org/2000/svg"]
    assert len(svg) < 30_000


def test_nothing_in_a_static_twin_lies_outside_of_it(widget: Any) -> None:
    root = ElementTree.fromstring(widget.to_svg())
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    assert width == 700
    for path in root.findall(".//{*}path"):
        for x, y in re.findall(r"M([-\d.]+) ([-\d.]+)", path.attrib["d"]):
            assert 0 <= float(x) <= width and 0 <= float(y) <= height
    for text in root.findall(".//{*}text"):
        x, y, size = (float(text.attrib[a]) for a in ("x", "y", "font-size"))
        room = x if text.get("text-anchor") == "end" else width - x
        assert len(text.text or "") * size * 0.4 <= room and 0 <= x <= width and 0 <= y <= height


def test_the_outputs_of_a_cell_agree(widget: Any) -> None:
    data, metadata = widget._repr_mimebundle_()
    assert set(data) == {VIEW, "image/svg+xml", "text/plain"}
    assert data["text/plain"] == repr(widget) == widget.alt == metadata["image/svg+xml"]["alt"]
    assert data["image/svg+xml"] == widget.to_svg()
    assert "\n" not in widget.alt


@pytest.mark.parametrize("make", TWINS.values(), ids=TWINS)
def test_a_twin_is_the_same_bytes_each_time(make: Any) -> None:
    assert make().to_svg() == make().to_svg()


def test_an_exported_page_shows_the_picture_and_no_view() -> None:
    data, metadata = MaskDiagram(WRONG)._repr_mimebundle_()
    output = v4.new_output("display_data", data=data, metadata=metadata)
    notebook = v4.new_notebook(cells=[v4.new_code_cell("diagram", outputs=[output])])
    page, _ = HTMLExporter().from_notebook_node(notebook)
    assert "data:image/svg+xml;base64" in page
    assert VIEW not in page


def test_the_package_loads_no_widget_code_until_one_is_wanted() -> None:
    loaded = "print('anywidget' in sys.modules)"
    code = f"import sys, kvlab.widgets as widgets; {loaded}; widgets.MaskDiagram; {loaded}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]


def test_an_unknown_widget_is_an_attribute_error() -> None:
    import kvlab.widgets

    with pytest.raises(AttributeError, match="no attribute 'HeatMap'"):
        _ = kvlab.widgets.HeatMap


@pytest.mark.parametrize("path", sorted(WIDGETS.glob("*.js")), ids=lambda p: p.name)
def test_a_script_is_small_and_loads_nothing(path: Path) -> None:
    script = path.read_text()
    assert len(script.encode()) < 20_000
    assert set(re.findall(r"https?://[^\"'` ]*", script)) <= {"http://www.w3.org/2000/svg"}
    assert not re.search(r"\bimport\b|\bfetch\(|innerHTML", script)
    assert script.rstrip().endswith("export default { render };")
    assert path.with_suffix(".css").exists() and path.with_suffix(".py").exists()


@pytest.mark.parametrize("path", sorted(WIDGETS.glob("*.js")), ids=lambda p: p.name)
def test_what_a_script_listens_to_it_lets_go(path: Path) -> None:
    script = path.read_text()
    for start, end in [("window.addEventListener(", "window.removeEventListener("), ("model.on(", "model.off(")]:
        heard = re.findall(re.escape(start) + r"([^;]*)\);", script)
        assert heard and heard == re.findall(re.escape(end) + r"([^;]*)\);", script)


@pytest.mark.parametrize("path", sorted(WIDGETS.glob("*.css")), ids=lambda p: p.name)
def test_a_style_sheet_stays_inside_its_widget_and_follows_the_theme(path: Path) -> None:
    sheet = path.read_text()
    roots = {selector.split()[0] for rule in re.findall(r"([^{}]+){", sheet) for selector in rule.split(",")}
    assert len(roots) == 1
    assert "color: var(--jp-ui-font-color1" in sheet
    assert ":focus-visible" in sheet
    assert "url(" not in sheet and "@import" not in sheet


@pytest.mark.slow
def test_scripts_and_styles_are_in_the_wheel(tmp_path: Path) -> None:
    source = tmp_path / "source"  # a copy, since a build leaves its traces where it runs
    copytree(ROOT / "kvlab", source / "kvlab", ignore=ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        copy(ROOT / name, source)
    command = [sys.executable, "-m", "pip", "wheel", str(source), "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--wheel-dir", str(tmp_path)], check=True, capture_output=True)
    packed = set(ZipFile(next(tmp_path.glob("*.whl"))).namelist())
    files = [path.name for suffix in ("py", "js", "css") for path in WIDGETS.glob(f"*.{suffix}")]
    assert len(files) >= 20
    assert {f"kvlab/widgets/{name}" for name in files} <= packed


# CacheGrowth


def totals(widget: CacheGrowth, panel: int, step: int = -1) -> dict[str, int]:
    return dict(zip(QUANTITIES, widget.data["panels"][panel]["totals"][step], strict=True))


@pytest.mark.parametrize("cached", [True, False])
def test_totals_are_those_of_the_trace(cached: bool) -> None:
    trace = decoded(cached)
    drawn = totals(CacheGrowth(trace), 0)
    for quantity in ("projected", "stored", "read", "scores"):
        assert drawn[quantity] == trace.total(quantity)
    assert drawn["bytes"] == trace.bytes("stored")


def test_the_numbers_of_a_known_run() -> None:
    """2 layers; 5 prompt tokens, then steps at 6, 7 and 8 tokens in all: 5 + 3 against 5 + 6 + 7 + 8 in each layer."""
    growth = CacheGrowth(decoded(True), decoded(False))
    assert totals(growth, 0) == {
        "projected": 16, "again": 0, "stored": 16, "bytes": 1024, "read": 52, "scores": 2 * (25 + 6 + 7 + 8)
    }  # fmt: skip
    assert totals(growth, 1) == {
        "projected": 52, "again": 36, "stored": 0, "bytes": 0, "read": 52, "scores": 2 * (25 + 36 + 49 + 64)
    }  # fmt: skip
    assert growth.alt == (
        "Cache growth, 2 layers x 2 KV heads: prefill of 5 tokens, 3 decode steps. "
        "With a cache: 16 tokens projected, 0 of them again, 1,024 bytes stored. "
        "Without a cache: 52 tokens projected, 36 of them again, 0 bytes stored."
    )


def test_prefill_arrives_as_a_block_and_decode_adds_a_column() -> None:
    cached, uncached = (panel["runs"][0] for panel in CacheGrowth(decoded(True), decoded(False)).data["panels"])
    assert cached[:3] == [[(0, 5, NEW)], [(0, 5, READ), (5, 6, NEW)], [(0, 6, READ), (6, 7, NEW)]]
    assert uncached[:3] == [[(0, 5, NEW)], [(0, 5, AGAIN), (5, 6, NEW)], [(0, 6, AGAIN), (6, 7, NEW)]]


def test_the_twin_prints_what_each_step_projected() -> None:
    said = texts(CacheGrowth(decoded(True), decoded(False)).to_svg())
    rows = said[said.index("prefill") :]
    for numbers in (["5", "1", "1", "1"], ["5", "6", "7", "8"]):
        start = next(i for i in range(len(rows)) if rows[i : i + 4] == numbers)
        rows = rows[start + 4 :]
    for total in ("16", "52", "36", "1,024"):
        assert total in rows


@given(st.lists(st.integers(0, 6), min_size=1, max_size=8).filter(any))
def test_every_position_is_computed_for_the_first_time_once(chunks: list[int]) -> None:
    past = np.cumsum([0, *chunks]).tolist()
    cached = counted([(n, p, {"projected": n, "stored": n, "read": p + n}) for n, p in zip(chunks, past, strict=False)])
    whole = counted([(p + n, 0, {"projected": p + n, "read": p + n}) for n, p in zip(chunks, past, strict=False)])
    for panel in CacheGrowth(cached, whole).data["panels"]:
        new = [i for step in panel["runs"][0] for a, b, state in step if state == NEW for i in range(a, b)]
        assert new == list(range(sum(chunks)))


def test_a_cache_that_is_built_and_never_used_is_drawn_so() -> None:
    steps = [(3, 0, {"projected": 3, "stored": 3, "read": 3}), (1, 3, {"projected": 4, "stored": 1, "read": 4})]
    growth = CacheGrowth(counted(steps))
    assert growth.data["panels"][0]["runs"][0][1] == [(0, 3, AGAIN), (3, 4, NEW)]
    assert totals(growth, 0)["again"] == 3


def test_rows_held_and_not_read_are_drawn_so() -> None:
    steps = [(3, 0, {"projected": 3, "stored": 3, "read": 3}), (1, 3, {"projected": 1, "stored": 1, "read": 2})]
    assert CacheGrowth(counted(steps)).data["panels"][0]["runs"][0][1] == [(0, 2, IDLE), (2, 3, READ), (3, 4, NEW)]


def test_layers_that_differ_are_drawn_apart() -> None:
    trace = counted([(2, 0, {"projected": 2, "stored": 2, "read": 2}), (1, 2, {})], n_layers=3)
    trace.count(1, projected=1, stored=1, read=3)
    panel = CacheGrowth(trace).data["panels"][0]
    assert panel["kinds"] == [0, 1, 0]
    assert panel["runs"][0][1] == [(0, 2, IDLE)]
    assert panel["runs"][1][1] == [(0, 2, READ), (2, 3, NEW)]


def test_more_than_can_be_drawn_is_said_in_words() -> None:
    said = " ".join(texts(TWINS["growth, long"]().to_svg()))
    assert "One row stands for 12 layers x 8 KV heads, which are alike." in said
    assert "24 of 100 steps are drawn." in said
    assert "100 positions are drawn to scale" in said
    assert "drawn" not in " ".join(texts(TWINS["growth"]().to_svg()))


def test_a_later_step_of_the_trace_changes_no_widget() -> None:
    trace = decoded(True)
    growth = CacheGrowth(trace)
    before = growth.to_svg()
    trace.begin(1, 8)
    assert growth.to_svg() == before


@pytest.mark.parametrize("step", [-1, 5])
def test_a_step_out_of_range_is_refused_and_changes_nothing(step: int) -> None:
    growth = CacheGrowth(decoded(True))
    growth.step = 4
    with pytest.raises(ValueError, match=rf"step: expected 0 .* to 4 .*, got {step}"):
        growth.step = step
    assert growth.step == 4


def test_a_step_from_the_browser_that_is_out_of_range_is_rolled_back() -> None:
    growth = CacheGrowth(decoded(True))
    growth.set_state({"step": 2})
    with pytest.raises(ValueError, match="step"):
        growth.set_state({"step": 9})
    assert growth.step == 2


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CacheGrowth([1, 2]), r"trace: expected a kvlab.trace.Trace, got list"),
        (lambda: CacheGrowth(Trace(1, 1, 4, 2)), "trace: no token in 0 steps"),
        (lambda: CacheGrowth(counted([(0, 0, {})])), "trace: no token in 1 steps"),
        (lambda: CacheGrowth(decoded(True), Trace(2, 2, 8, 2)), "uncached: no token in 0 steps"),
        (lambda: CacheGrowth(decoded(True), decoded(False, 3)), "uncached: 3 steps, trace has 4"),
        (lambda: CacheGrowth(decoded(True), counted([(1, 0, {})])), "uncached: n_layers is 1, in trace it is 2"),
    ],
)
def test_a_run_that_cannot_be_drawn_is_refused(no_shape_hook: None, make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


# MaskDiagram


def test_a_wrong_mask_is_drawn_as_it_is_and_its_differences_are_marked() -> None:
    diagram = MaskDiagram(WRONG, expected=offset_mask(3, 7))
    assert diagram.data["panels"] == [["1000000", "1100000", "1110000"], ["1111100", "1111110", "1111111"]]
    assert diagram.data["differs"] == ["0111100", "0011110", "0001111"]
    assert diagram.alt == (
        "Mask of 3 queries over 7 keys: query at position 4 may see key 0, expected keys 0-4; query at position 5 may "
        "see keys 0-1, expected keys 0-5; query at position 6 may see keys 0-2, expected keys 0-6. "
        "12 of 21 cells differ from the expected mask."
    )
    said = texts(diagram.to_svg())
    assert "12 of 21 cells differ." in said
    assert "Query at position 4 may see key 0, expected keys 0-4." in said


@given(st.data())
def test_cells_marks_and_sentences_follow_any_mask(data: st.DataObject) -> None:
    n_new = data.draw(st.integers(1, 6))
    n_total = data.draw(st.integers(n_new, 9))
    bits = st.lists(st.booleans(), min_size=n_new * n_total, max_size=n_new * n_total)
    ours, theirs = (np.array(data.draw(bits)).reshape(n_new, n_total) for _ in range(2))
    diagram = MaskDiagram(ours, theirs)
    drawn = [np.array([[cell == "1" for cell in row] for row in panel]) for panel in diagram.data["panels"]]
    assert (drawn[0] == ours).all() and (drawn[1] == theirs).all()
    assert diagram.data["n_differ"] == (ours ^ theirs).sum()
    for i, row in enumerate(diagram.data["rows"]):
        assert row.startswith(f"query at position {n_total - n_new + i} may see ")
        assert ("expected" in row) == bool((ours[i] ^ theirs[i]).any())


@given(st.lists(st.booleans(), min_size=1, max_size=12))
def test_key_ranges_name_exactly_the_visible_keys(visible: list[bool]) -> None:
    said = key_text(np.array(visible))
    named: set[int] = set()
    for first, last in re.findall(r"(\d+)(?:-(\d+))?(?=,|$| and)", said):
        named |= set(range(int(first), int(last or first) + 1))
    keys = {i for i, v in enumerate(visible) if v}
    assert named == keys if "stretches" not in said else named < keys
    assert said.startswith({0: "no key", 1: "key "}.get(len(keys), "keys "))


def test_a_large_mask_is_drawn_by_blocks_that_count() -> None:
    mask = np.zeros((100, 300), bool)
    mask[:2, :5] = True  # one whole block of 2 x 5
    mask[2, 5] = True  # part of the next
    diagram = MaskDiagram(mask, np.zeros((100, 300)))
    assert diagram.data["block"] == (2, 5)
    assert diagram.data["panels"][0][:2] == ["1" + "0" * 59, "02" + "0" * 58]
    assert diagram.data["rows"][0].startswith("queries at positions 200-201 together may see keys 0-4")
    assert diagram.data["n_differ"] == 11
    assert "Each drawn cell stands for 2 x 5 of the mask's (queries x keys)." in texts(diagram.to_svg())


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 4), st.integers(1, 4))
def test_blocks_say_none_all_or_some(n_new: int, n_total: int, height: int, width: int) -> None:
    mask = np.random.default_rng(n_new * n_total).integers(0, 2, (n_new, n_total)).astype(bool)
    for i, row in enumerate(block_cells(mask, (height, width))):
        for j, cell in enumerate(row):
            block = mask[i * height : (i + 1) * height, j * width : (j + 1) * width]
            assert cell == ("1" if block.all() else "2" if block.any() else "0")


def test_a_function_is_asked_again_when_the_sizes_change() -> None:
    diagram = MaskDiagram(lambda n, m: np.tril(np.ones((n, m))), expected=offset_mask, n_new=3, n_total=7)
    assert diagram.data["sliders"]
    diagram.row, diagram.column = 2, 6
    diagram.set_state({"n_new": 1, "n_total": 4})
    assert diagram.data["panels"] == [["1000"], ["1111"]]
    assert (diagram.row, diagram.column) == (0, 3)
    diagram.n_total = 20
    assert diagram.data["n_differ"] == 19 and diagram.data["reach"] == 20


def test_an_array_has_no_sliders_and_a_function_beside_it_follows_its_shape() -> None:
    diagram = MaskDiagram(offset_mask, expected=np.ones((2, 5)))
    assert not diagram.data["sliders"]
    assert diagram.data["panels"][0] == ["11110", "11111"]
    with pytest.raises(ValueError, match=r"n_new: this diagram shows an array of shape \(2, 5\)"):
        diagram.n_new = 1


def test_a_function_that_fails_later_says_so_and_recovers() -> None:
    def square(n_new: int, n_total: int) -> np.ndarray:
        if n_new == 2:
            raise NotImplementedError("square: not written yet")
        return np.tril(np.ones((n_new, n_new)))

    diagram = MaskDiagram(square, n_new=3, n_total=3)
    diagram.n_new = 2
    assert diagram.alt == "No mask for 2 new and 3 in all: NotImplementedError: square: not written yet"
    assert diagram.alt in texts(diagram.to_svg())
    diagram.n_new = 1
    assert "expected shape (n_new=1, n_total=3), got (1, 1)" in diagram.alt
    diagram.n_new = 3
    assert diagram.alt.startswith("Mask of 3 queries over 3 keys: query at position 0 may see key 0;")


def test_labels_stand_beside_their_positions() -> None:
    said = texts(MaskDiagram(offset_mask(2, 3), labels=["the", "cat", "sat"]).to_svg())
    assert {"1 cat", "2 sat", "the"} <= set(said)


@pytest.mark.parametrize(
    ("trait", "value"), [("row", 3), ("row", -1), ("column", 7), ("n_new", 8), ("n_new", 0), ("n_total", 2)]
)
def test_a_cell_or_size_out_of_range_is_refused_and_changes_nothing(trait: str, value: int) -> None:
    diagram = MaskDiagram(offset_mask, n_new=3, n_total=7)
    before = getattr(diagram, trait)
    with pytest.raises(ValueError, match=trait):
        setattr(diagram, trait, value)
    with pytest.raises(ValueError, match=trait):
        diagram.set_state({trait: value})
    assert getattr(diagram, trait) == before
    assert diagram.data["panels"][0] == ["1111100", "1111110", "1111111"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mask": np.ones(3)}, r"mask: expected shape \(n_new, n_total\), got \(3,\)"),
        ({"mask": np.ones((1, 2, 3))}, r"mask: expected shape \(n_new, n_total\), got \(1, 2, 3\)"),
        ({"mask": [[1], [1, 0]]}, "mask: .* got rows of unequal length"),
        ({"mask": np.ones((3, 2))}, r"mask: expected 1 <= n_new <= n_total, got shape \(3, 2\)"),
        ({"mask": np.ones((0, 2))}, r"mask: expected 1 <= n_new <= n_total, got shape \(0, 2\)"),
        ({"mask": np.array([[0.0, -np.inf]])}, "mask: expected True .* got -inf"),
        ({"mask": np.array([[1, np.nan]])}, "mask: expected True .* got nan"),
        ({"mask": np.array([["True"]])}, "mask: expected True .* got 'True'"),
        ({"mask": np.ones((3, 3)), "expected": np.ones((3, 7))}, r"expected: expected shape \(n_new=3, n_total=3\)"),
        ({"mask": np.ones((2, 3)), "n_new": 1}, r"n_new: 1 contradicts an array of shape \(2, 3\)"),
        ({"mask": np.ones((2, 3)), "labels": ["a", "b"]}, "labels: expected one a key position, 3, got 2"),
        ({"mask": offset_mask}, "pass n_new= and n_total="),
        ({"mask": offset_mask, "n_new": 4, "n_total": 3}, "n_new: 4 queries cannot stand at the end of 3 keys"),
        ({"mask": offset_mask, "n_new": 0, "n_total": 3}, "n_new: expected a whole number of at least 1, got 0"),
        ({"mask": lambda n, m: np.ones((n, n)), "n_new": 2, "n_total": 3}, r"\(n_new=2, n_total=3\), got \(2, 2\)"),
    ],
)
def test_a_mask_that_cannot_be_drawn_is_refused(no_shape_hook: None, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MaskDiagram(**arguments)
