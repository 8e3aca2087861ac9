"""CacheGrowth: how a cache fills, step by step, beside the same run without one."""

from collections.abc import Iterator
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import traitlets

from kvlab.trace import Step, Trace
from kvlab.widgets.cache_growth_sheet import AGAIN, IDLE, LEGEND, NEW, NOTHING, QUANTITIES, READ, draw
from kvlab.widgets.twin import Refused, StaticTwin, plural

Run = tuple[int, int, int]  # first position, one past the last, state


class CacheGrowth(StaticTwin):
    """A run drawn as layers x KV heads x positions: prefill arrives as a block, each decode step adds a column.

    Shows what each step projected, stored, read and computed again, with running totals, beside the same run without
    a cache. A trace holds counts, not places: the rows of a step are drawn from its newest position backwards.

    Args:
        trace: the run to draw; see `kvlab.trace.Trace`.
        uncached: the same run without a cache, one step for each step of `trace`; None draws `trace` alone.

    Attributes:
        step: 0 before the run, k after `trace.steps[k - 1]`; the browser sets it and so may you.

    Raises:
        ValueError: a trace with no step or no token, two traces of different shape or number of steps, a step out of
            range.

    >>> trace = Trace(n_layers=1, n_kv_heads=2, head_dim=8, bytes_per_element=2)
    >>> for n_new, n_past in [(5, 0), (1, 5)]:
    ...     trace.begin(n_new, n_past)
    ...     trace.count(0, projected=n_new, stored=n_new, read=n_past + n_new, scores=n_new * (n_past + n_new))
    >>> CacheGrowth(trace)
    Cache growth, 1 layer x 2 KV heads: prefill of 5 tokens, 1 decode step. With a cache: 6 tokens projected, 0 of \
them again, 384 bytes stored.
    """

    _esm = Path(__file__).with_suffix(".js")
    _css = Path(__file__).with_suffix(".css")
    data = traitlets.Dict().tag(sync=True)
    step = traitlets.Int(0).tag(sync=True)

    def __init__(self, trace: Trace, uncached: Trace | None = None) -> None:
        _expect_run("trace", trace)
        runs = [trace]
        if uncached is not None:
            _expect_run("uncached", uncached)
            _expect_twins(trace, uncached)
            runs.append(uncached)
        names = [_name(step, first=i == 0) for i, step in enumerate(trace.steps)]
        n_positions = max(step.n_past + step.n_new for run in runs for step in run.steps)
        panels = [_panel(run, n_positions) for run in runs]
        states = {state for p in panels for kind in p["runs"] for step in kind for _, _, state in step}
        data = {
            "n_layers": trace.n_layers,
            "n_kv_heads": trace.n_kv_heads,
            "n_positions": n_positions,
            "names": names,
            "panels": panels,
            "quantities": list(QUANTITIES.values()),
            "legend": [[state, colour, words] for state, (colour, words) in LEGEND.items() if state in states],
        }
        super().__init__(data=data | {"alt": _alt(data, _summary(names, trace.steps))})

    @traitlets.validate("step")
    def _expect_step(self, proposal: dict[str, Any]) -> int:
        step, last = proposal["value"], len(self.data["names"])
        if not 0 <= step <= last:
            raise Refused(f"step: expected 0 (before the run) to {last} (after it), got {step}")
        return step

    @property
    def alt(self) -> str:
        """The run's shape, its steps and its totals, in one line."""
        said: str = self.data["alt"]
        return said

    def to_svg(self) -> str:
        """The whole run at rest: one strip a step and run, with the tokens projected in it, and the totals."""
        return draw(self.data, self.alt)


def _expect_run(name: str, trace: Trace) -> None:
    if not isinstance(trace, Trace):
        raise ValueError(f"{name}: expected a kvlab.trace.Trace, got {type(trace).__name__}")
    if not any(step.n_new for step in trace.steps):
        raise ValueError(f"{name}: no token in {len(trace.steps)} steps, pass trace= to the model's calls first")


def _expect_twins(trace: Trace, uncached: Trace) -> None:
    for field in ("n_layers", "n_kv_heads", "head_dim"):
        ours, theirs = getattr(trace, field), getattr(uncached, field)
        if ours != theirs:
            raise ValueError(f"uncached: {field} is {theirs}, in trace it is {ours}: pass two runs of one model")
    if len(trace.steps) != len(uncached.steps):
        raise ValueError(f"uncached: {len(uncached.steps)} steps, trace has {len(trace.steps)}: they go side by side")


def _name(step: Step, first: bool) -> str:
    """What a step is called in the course's words."""
    if step.n_new == 0:
        return "empty chunk"
    if step.n_past == 0:
        return "prefill" if first else "full pass"
    return "decode" if step.n_new == 1 else "chunk"


def _alt(data: dict[str, Any], summary: str) -> str:
    layers, heads = plural(data["n_layers"], "layer"), plural(data["n_kv_heads"], "KV head")
    said = [f"Cache growth, {layers} x {heads}: {summary}."]
    for panel in data["panels"]:
        total = dict(zip(QUANTITIES, panel["totals"][-1], strict=True))
        said.append(
            f"{panel['title']}: {plural(total['projected'], 'token')} projected, {total['again']:,} of them again, "
            f"{plural(total['bytes'], 'byte')} stored."
        )
    return " ".join(said)


def _summary(names: list[str], steps: list[Step]) -> str:
    """prefill of 5 tokens, 7 decode steps"""
    groups = [(key, len(list(g))) for key, g in groupby(zip(names, (s.n_new for s in steps), strict=True))]
    said = []
    for (name, n_new), times in groups[:4]:
        if name == "decode":
            said.append(plural(times, "decode step"))
        else:
            said.append((f"{times} x " if times > 1 else "") + f"{name} of {plural(n_new, 'token')}")
    left_out = sum(times for _, times in groups[4:])
    return ", ".join(said) + (f", {left_out} more steps" if left_out else "")


def _panel(trace: Trace, n_positions: int) -> dict[str, Any]:
    """One run as the browser gets it: which layers are alike, what each step draws, running totals over all layers."""
    counts = np.array(
        [[(c.projected, c.stored, c.read, c.scores) for c in step.layers] for step in trace.steps], dtype=np.int64
    )
    histories = [counts[:, layer].tobytes() for layer in range(trace.n_layers)]
    kinds = list(dict.fromkeys(histories))
    kind_of = [kinds.index(history) for history in histories]
    ends = [step.n_past + step.n_new for step in trace.steps]
    runs = [list(_layer_runs(counts[:, kind_of.index(kind)], ends, n_positions)) for kind in range(len(kinds))]
    first_time = np.array([[sum(b - a for a, b, state in step if state == NEW) for step in kind] for kind in runs])
    projected, stored, read, scores = counts.sum(axis=1).cumsum(axis=0).T
    row_bytes = 2 * trace.n_kv_heads * trace.head_dim * trace.bytes_per_element
    totals = {
        "projected": projected,
        "again": projected - first_time[kind_of].sum(axis=0).cumsum(),
        "stored": stored,
        "bytes": (stored * row_bytes).astype(np.int64),
        "read": read,
        "scores": scores,
    }
    return {
        "title": "With a cache" if stored[-1] else "Without a cache",
        "kinds": kind_of,
        "runs": runs,
        "totals": np.stack([totals[quantity] for quantity in QUANTITIES], axis=1).tolist(),
    }


def _layer_runs(counts: np.ndarray, ends: list[int], n_positions: int) -> Iterator[list[Run]]:
    """For each step, the stretches of positions that are in one state, the same for every KV head of a layer.

    Args:
        counts: (n_steps, 4) of one layer: projected, stored, read, scores.
        ends: for each step, the tokens seen after it.
    """
    seen, held = np.zeros(n_positions, bool), np.zeros(n_positions, bool)
    for (n_projected, n_stored, n_read, _), end in zip(counts.tolist(), ends, strict=True):
        read, projected, stored = (slice(max(0, end - n), end) for n in (n_read, n_projected, n_stored))
        state = held * np.uint8(IDLE)
        state[read][held[read]] = READ
        state[projected] = np.where(seen[projected], AGAIN, NEW)
        seen[projected] = held[stored] = True
        edges = [0, *(np.flatnonzero(np.diff(state)) + 1).tolist(), n_positions]
        yield [(a, b, int(state[a])) for a, b in pairwise(edges) if state[a] != NOTHING]
