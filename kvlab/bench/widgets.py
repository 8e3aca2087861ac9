"""How long a widget takes to draw, measured in a real page: Chromium, the widget's own script, a model that is a dict.

A step is timed from the change of the model to the end of layout (script_ms), and by the frames of the page while one
step is drawn in each (frame_ms): 16.7 ms is a 60 Hz screen kept busy and nothing lost.
"""

import json
import os
import shutil
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

NAME = "widgets"
N_STEPS = 200
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]

# Draws a widget from its script as a notebook does, then steps it; a model is a dict that calls its listeners.
HARNESS = """
async ({ script, style, state, steps }) => {
  const heard = {};
  const model = {
    get: (name) => state[name], set: (name, value) => (state[name] = value), save_changes() {},
    on: (name, f) => (heard[name] ??= []).push(f), off() {},
  };
  const change = (values) => {
    Object.assign(state, values);
    for (const name of Object.keys(values)) for (const f of heard[`change:${name}`] ?? []) f();
  };
  const painted = () => new Promise((done) => requestAnimationFrame(() => {
    const channel = new MessageChannel();
    channel.port1.onmessage = () => done(performance.now());
    channel.port2.postMessage(0);
  }));
  document.head.append(Object.assign(document.createElement("style"), { textContent: style }));
  const module = await import(URL.createObjectURL(new Blob([script], { type: "text/javascript" })));
  await painted();
  const start = performance.now();
  module.default.render({ model, el: document.body });
  const first_paint_ms = (await painted()) - start;
  const heights = new Set([document.body.scrollHeight]);
  const script_ms = [], frame_ms = [];
  let last = await new Promise(requestAnimationFrame);
  for (const values of steps) {
    const before = performance.now();
    change(values);
    heights.add(document.body.scrollHeight); // asks for the layout
    script_ms.push(performance.now() - before);
    const frame = await new Promise(requestAnimationFrame);
    frame_ms.push(frame - last);
    last = frame;
  }
  const said = document.querySelector("[role=status]").textContent; // proves that the last step was drawn
  return { first_paint_ms, script_ms, frame_ms, heights: [...heights], said };
}
"""


def find_chromium() -> str | None:
    """The browser to drive: CHROMIUM, or the first that is installed."""
    found = map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))
    return os.environ.get("CHROMIUM") or next(filter(None, found), None)


def measure(n_steps: int = N_STEPS) -> dict[str, Any]:
    """Every widget's rows: medians and the slowest of `n_steps`, first paint, whether the page's height moved.

    Raises:
        RuntimeError: no Chromium, or no playwright; in one line, with how to get it.
    """
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        raise RuntimeError("playwright is missing: pip install -r requirements.txt") from None
    chromium = find_chromium()
    if chromium is None:
        raise RuntimeError("Chromium is missing: apt install chromium, or name one with CHROMIUM=/path")
    rows = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        for name, make in CASES.items():
            widget, steps = make(n_steps)
            state = {key: value for key, value in widget.get_state().items() if not key.startswith("_")}
            page = browser.new_page(viewport={"width": 900, "height": 1000})
            page.set_default_timeout(120_000)
            given = {"script": str(widget._esm), "style": str(widget._css), "state": state, "steps": steps}
            rows.append({"widget": name, **_summary(page.evaluate(HARNESS, given))})
            page.close()
        version = browser.version
        browser.close()
    date = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    return {"benchmark": NAME, "date": date, "chromium": version, "n_cpus": os.cpu_count(), "rows": rows}


def _summary(timed: dict[str, Any]) -> dict[str, Any]:
    return {
        "n_steps": len(timed["script_ms"]),
        "first_paint_ms": timed["first_paint_ms"],
        "script_ms_median": statistics.median(timed["script_ms"]),
        "script_ms_max": max(timed["script_ms"]),
        "frame_ms_median": statistics.median(timed["frame_ms"]),
        "frame_ms_max": max(timed["frame_ms"]),
        "heights": len(timed["heights"]),
        "said": timed["said"],
    }


def report(result: dict[str, Any]) -> str:
    """The rows as a table for the terminal."""
    lines = [f"widgets: Chromium {result['chromium']}, {result['n_cpus']} cores, {result['date']}"]
    for row in result["rows"]:
        jump = "" if row["heights"] == 1 else f"  HEIGHT MOVED, {row['heights']} heights"
        lines.append(
            f"  {row['widget']:<40} first paint {row['first_paint_ms']:7.1f} ms   step {row['script_ms_median']:6.2f} "
            f"ms median {row['script_ms_max']:6.2f} max   frame {row['frame_ms_median']:5.1f} ms median{jump}"
        )
    return "\n".join(lines)


def save(result: dict[str, Any], folder: Path) -> Path:
    """Write the results whole or not at all; return where."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{NAME}.json"
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    os.replace(unfinished, path)
    return path


# What is drawn, at the largest size that is promised


def _growth(n_steps: int) -> tuple[Any, list[dict[str, Any]]]:
    """32 layers x 8 KV heads x 4,096 positions, beside the same run without a cache."""
    from kvlab.trace import Trace
    from kvlab.widgets import CacheGrowth

    runs = []
    for cached in (True, False):
        trace = Trace(n_layers=32, n_kv_heads=8, head_dim=128, bytes_per_element=2)
        past = 0
        for n in [4096 - n_steps + 1] + [1] * (n_steps - 1):
            n_new = n if cached else past + n
            trace.begin(n_new, past if cached else 0)
            past += n
            for layer in range(32):
                trace.count(layer, projected=n_new, stored=n if cached else 0, read=past, scores=n_new * past)
        runs.append(trace)
    return CacheGrowth(*runs), [{"step": i + 1} for i in range(n_steps)]


def _mask(n_steps: int) -> tuple[Any, list[dict[str, Any]]]:
    from kvlab.widgets import MaskDiagram

    diagram = MaskDiagram("sinks", "window", n_new=64, n_total=64, window=16, n_sinks=4)
    return diagram, [{"row": i % 64, "column": 7 * i % 64} for i in range(n_steps)]


def _scenes(explorer: Any, trait: str, values: list[Any]) -> tuple[Any, list[dict[str, Any]]]:
    """An explorer and its scene for each value: what the page gets from Python."""
    steps = []
    for value in values:
        setattr(explorer, trait, value)
        steps.append({trait: value, "data": explorer.data})
    setattr(explorer, trait, values[0])  # where the page begins
    return explorer, steps


def _blocks(n_steps: int) -> tuple[Any, list[dict[str, Any]]]:
    from kvlab.widgets import BlockTable

    events = [{"do": "allocate", "sequence": f"s{i % 8}", "block": i} for i in range(n_steps)]
    return _scenes(BlockTable(events, n_blocks=n_steps, block_size=8), "step", list(range(1, n_steps + 1)))


def _memory(n_steps: int) -> tuple[Any, list[dict[str, Any]]]:
    from kvlab.widgets import MemoryExplorer

    return _scenes(MemoryExplorer(), "batch", [1 + i % 64 for i in range(n_steps)])


CASES: dict[str, Callable[[int], tuple[Any, list[dict[str, Any]]]]] = {
    "CacheGrowth 32 x 8 x 4,096, twice": _growth,
    "MaskDiagram 64 x 64, twice": _mask,
    "BlockTable, 8 sequences, 60 blocks": _blocks,
    "MemoryExplorer": _memory,
}
