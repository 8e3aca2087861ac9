"""PositionDrift: how far runs are from the uncached one, step by step."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import traitlets

from kvlab.shapes import expect
from kvlab.style import COLORS
from kvlab.widgets.explorer import MARGIN, Explorer, Scene, control, expect_index, expect_option
from kvlab.widgets.twin import Px, plural

STYLES = (  # of the first run, the second, ...: colour, dash, mark
    (COLORS["wrong"], "", "square"),
    (COLORS["right"], "7 4", "round"),
    (COLORS["values"], "2 3", "square"),
    (COLORS["cached"], "9 3 2 3", "round"),
    (COLORS["new"], "4 2", "square"),
    (COLORS["quiet"], "1 2", "round"),
)
CHART = {"left": 70, "top": 40, "width": 590, "height": 190}
SCALES = ("linear", "logarithmic")
MAX_STEPS = 512  # drawn one by one; of more, every second, third, ...
NO_LESS = 1e-17  # what a logarithmic scale shows 0 as


class PositionDrift(Explorer):
    """Distance from the uncached run in each decode step, a curve a run: right positions stay at rounding error.

    Args:
        runs: for each name, the distances (n_steps,), or outputs (n_steps, width) to compare with `reference`.
        reference: outputs of the uncached run, (n_steps, width); the distance is the largest absolute difference.

    Attributes:
        step: the decode step looked at, counted from 0.
        scale: "linear", or "logarithmic", on which rounding errors show.

    Raises:
        ValueError: no run, no step, runs of unequal shapes, distances below 0, a reference that is not finite. A
            run's nan and inf are no error: they are drawn as what they are, a run that broke.

    >>> PositionDrift({"position 0": [0.5, 1.0, 1.25], "followed": [0.0, 0.0, 1e-15]})
    Distance from the uncached run over 3 decode steps. position 0: 0.5 at step 0, 1.25 at step 2, at most 1.25. \
followed: 0 at step 0, 1e-15 at step 2, at most 1e-15.
    """

    title = "Distance from the uncached run"
    arrows = ("step",)
    step = traitlets.Int(0).tag(sync=True, draws=True)
    scale = traitlets.Unicode("linear").tag(sync=True, draws=True)

    def __init__(self, runs: Mapping[str, Any], reference: Any = None, scale: str = "linear") -> None:
        if not isinstance(runs, Mapping) or not 1 <= len(runs) <= len(STYLES):
            n = len(runs) if hasattr(runs, "__len__") else type(runs).__name__
            raise ValueError(f"runs: expected 1 to {len(STYLES)} runs as a dict of names and arrays, got {n}")
        self.distances = _distances(runs, reference)
        self.n_steps = len(next(iter(self.distances.values())))
        self.height = CHART["top"] + CHART["height"] + 34 + 18 * len(runs)
        super().__init__(scale=scale, step=self.n_steps - 1)

    @property
    def alt(self) -> str:
        """Each run's first and last distance and its largest, or where it broke."""
        said = [f"Distance from the uncached run over {plural(self.n_steps, 'decode step')}."]
        for name, d in self.distances.items():
            broken = np.flatnonzero(~np.isfinite(d))
            worst = f"at most {_figure(d.max())}" if not broken.size else f"{d[broken[0]]} at step {broken[0]}"
            said.append(f"{name}: {_figure(d[0])} at step 0, {_figure(d[-1])} at step {self.n_steps - 1}, {worst}.")
        return " ".join(said)

    def _said(self) -> str:
        here = [f"{name} {_figure(d[self.step])}" for name, d in self.distances.items()]
        return f"Step {self.step} of {self.n_steps}, distance from the uncached run: {'; '.join(here)}."

    def _controls(self) -> list[dict[str, Any]]:
        return [
            control("step", "step", range(self.n_steps), self.step, kind="play"),
            control("scale", "scale", SCALES, self.scale, kind="select"),
        ]

    def _scene(self) -> Scene:
        scene, c = Scene(), CHART
        finite = np.concatenate([d[np.isfinite(d)] for d in self.distances.values()])
        top = _round_up(float(finite.max()) if finite.size and finite.max() > 0 else 1.0)
        right, bottom = c["left"] + c["width"], c["top"] + c["height"]
        hi = math.ceil(math.log10(top))
        lo = math.log10(NO_LESS)

        def x_of(step: Px) -> float:
            return c["left"] + 10 + (c["width"] - 20) * step / max(1, self.n_steps - 1)

        def y_of(distance: Px) -> float:
            if not np.isfinite(distance):
                return c["top"] - 6
            if self.scale == "linear":
                return bottom - c["height"] * distance / top
            return bottom - c["height"] * (math.log10(max(float(distance), NO_LESS)) - lo) / (hi - lo)

        scene.text(MARGIN, 20, self.title, 13, bold=True)
        marks = np.linspace(0, top, 5).tolist() if self.scale == "linear" else [10.0**p for p in range(hi, -18, -4)]
        for at in marks:
            scene.curve([(c["left"], y_of(at)), (right, y_of(at))], "empty", 1)
            scene.text(c["left"] - 6, y_of(at) + 4, _figure(at), 11, "end")
        every = next(n for n in (1, 2, 5, 10, 20, 50, 100, 200, 500, 10**9) if n * c["width"] / self.n_steps >= 28)
        for step in range(0, self.n_steps, every):
            scene.text(x_of(step), bottom + 16, f"{step:,}", 11, "middle")
        scene.text(right, bottom + 32, "decode step", 11, "end", fill="quiet")
        scene.curve([(x_of(self.step), c["top"]), (x_of(self.step), bottom)], "quiet", 1, "3 3")
        skip = -(-self.n_steps // MAX_STEPS)
        for d, (colour, dash, kind) in zip(self.distances.values(), STYLES, strict=False):
            for stretch in _finite_stretches(d, skip):
                scene.curve([(x_of(i), y_of(d[i])) for i in stretch], colour, 2.5, dash)
            for i in np.flatnonzero(~np.isfinite(d))[:: max(1, skip)][:64].tolist():
                scene.cross((x_of(i) - 4, c["top"] - 10, 8, 8), colour)
            scene.mark(x_of(self.step), y_of(d[self.step]), colour, kind)
        self._legend(scene, bottom + 34)
        pitch = (c["width"] - 20) / max(1, self.n_steps - 1)
        for i in range(0, self.n_steps, skip):
            scene.place((x_of(i) - pitch / 2, c["top"], max(1.0, pitch), c["height"]), "step", i)
        return scene

    def _legend(self, scene: Scene, y: Px) -> None:
        """Each run's line, its name and its distance at the step looked at; a word on what is left out."""
        for i, ((name, d), (colour, dash, kind)) in enumerate(zip(self.distances.items(), STYLES, strict=False)):
            at = y + 18 * i
            scene.curve([(MARGIN, at), (MARGIN + 34, at)], colour, 2.5, dash)
            scene.mark(MARGIN + 17, at, colour, kind, 4)
            broken = "" if np.isfinite(d).all() else " (crosses: not a number)"
            words = f"{name[:64]}: {_figure(d[self.step])} at step {self.step}{broken}"
            scene.text(MARGIN + 44, at + 4, words, 12)
        if self.n_steps > MAX_STEPS:
            words = f"one of {-(-self.n_steps // MAX_STEPS)} steps is drawn"
            scene.text(scene.width - MARGIN, 20, words, 11, "end", fill="quiet")

    @traitlets.validate("step")
    def _expect_step(self, proposal: dict[str, Any]) -> int:
        return expect_index("step", proposal["value"], self.n_steps - 1)

    @traitlets.validate("scale")
    def _expect_scale(self, proposal: dict[str, Any]) -> str:
        return str(expect_option("scale", proposal["value"], SCALES))


def _distances(runs: Mapping[str, Any], reference: Any) -> dict[str, np.ndarray]:
    """(n_steps,) floats for each run, all of one length."""
    axes: tuple[str, ...] = ("n_steps",)
    sizes: dict[str, int] = {}
    if reference is not None:
        reference = np.asarray(reference, float)
        axes = ("n_steps", "width")
        sizes = expect("reference", reference, axes)
        if not np.isfinite(reference).all():
            raise ValueError(f"reference: expected finite numbers, got {reference[~np.isfinite(reference)][0]}")
    distances = {}
    for name, run in runs.items():
        array = np.asarray(run, float)
        sizes = expect(str(name), array, axes, **sizes)
        if 0 in sizes.values():
            raise ValueError(f"{name}: expected at least one decode step, got shape {array.shape}")
        distances[str(name)] = array if reference is None else np.abs(array - reference).max(axis=1)
        if (distances[str(name)] < 0).any():
            raise ValueError(f"{name}: a distance is at least 0, got {array.min()}")
    return distances


def _finite_stretches(d: np.ndarray, skip: int) -> list[list[int]]:
    """The steps that are joined by a line: those between two that are not finite."""
    stretches: list[list[int]] = [[]]
    for i in range(0, len(d), skip):
        if np.isfinite(d[i]):
            stretches[-1].append(i)
        elif stretches[-1]:
            stretches.append([])
    return [stretch for stretch in stretches if stretch]


def _round_up(x: float) -> float:
    """The next number whose quarters read well: 1.34 -> 1.6.

    >>> _round_up(1.34), _round_up(0.99), _round_up(9e-16)
    (1.6, 1.0, 1e-15)
    """
    unit = 10.0 ** math.floor(math.log10(x))
    top = next(n for n in (1, 1.2, 1.6, 2, 2.4, 3, 4, 5, 6, 8, 10) if n * unit >= x * (1 - 1e-9))
    return float(f"{top * unit:.2g}")


def _figure(x: Any) -> str:
    return f"{float(x):.3g}"
