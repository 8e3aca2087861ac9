"""What a learner reads: an outcome as text for a terminal, and the same with a picture for a notebook."""

import textwrap
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from kvlab.checks.engine import Failure, Outcome
from kvlab.checks.model import Raised, kind_fits
from kvlab.checks.registry import Card

VERDICTS = {
    "passed": "passed",
    "incorrect": "incorrect",
    "not_attempted": "not attempted",
    "error": "your code raised",
    "timeout": "out of time",
}


SHOWN_WHOLE = 48  # entries of an array that a message prints


@dataclass(frozen=True)
class Report:
    """One exercise's result. `message` is the text without its first line, which `headline` is."""

    card: Card
    outcome: Outcome

    @property
    def points(self) -> int:
        """All of the exercise's points, or none: a cache that is wrong in one case is wrong."""
        return self.card.points if self.outcome.verdict == "passed" else 0

    @property
    def headline(self) -> str:
        return f"{self.card.id}: {VERDICTS[self.outcome.verdict]}, {self.points} of {self.card.points} points"

    @property
    def message(self) -> str:
        return "\n".join(self._lines())

    def __str__(self) -> str:
        return "\n".join([self.headline, *self._lines()])

    def as_json(self, file: str) -> dict[str, Any]:
        """The object that `kvlab check --json` prints, one a line."""
        return {
            "file": file,
            "exercise": self.card.id,
            "verdict": self.outcome.verdict,
            "points": self.points,
            "max_points": self.card.points,
            "mistake": self.outcome.mistake.id if self.outcome.mistake else None,
            "message": str(self),
        }

    def _lines(self) -> list[str]:
        outcome, failure = self.outcome, self.outcome.failure
        if outcome.verdict == "not_attempted":
            return [f'  write it where the stub raises, then check again; hint("{self.card.id}") helps in steps']
        lines = [f"  works     {says}" for says in outcome.works]
        if failure is None:
            return lines
        lines += [f"  fails     {failure.stage.says}", f"  input     {_indent(failure.probe.describe)}"]
        lines += _comparison(failure)
        if outcome.mistake:
            lines += _wrapped("mistake", f"{outcome.mistake.sentence} [{outcome.mistake.id}]")
            lines += _wrapped("ask", outcome.mistake.question)
        return lines

    def _repr_mimebundle_(self, **_: Any) -> tuple[dict[str, str], dict[str, Any]]:
        color = {"passed": "#009E73", "not_attempted": "#767676"}.get(self.outcome.verdict, "#D55E00")
        picture, alt = draw(self.outcome.failure) if self.outcome.failure else ("", "")
        body = f'<pre style="white-space: pre-wrap">{escape(self.message)}</pre>' if self.message else ""
        html = (
            f'<div style="border-left: 4px solid {color}; padding-left: 10px">'
            f"<strong>{escape(self.headline)}</strong>{body}{picture}</div>"
        )
        return {"text/plain": str(self), "text/html": html}, {"text/html": {"alt": alt}} if alt else {}


def _wrapped(label: str, text: str) -> list[str]:
    """A sentence beside its label, in lines that fit a terminal and a notebook."""
    return textwrap.wrap(text, 108, initial_indent=f"  {label:<10}", subsequent_indent=" " * 12)


def _comparison(failure: Failure) -> list[str]:
    """Expected beside yours, and the difference in words."""
    expected, got, name = failure.expected, failure.got, failure.key
    if expected is None:  # out of time: there is nothing to set beside it
        return [f"  yours     {got}"]
    if isinstance(got, Raised):
        if got.kinds[0] == "Malformed":
            return [f"  in words  {got.text}"]
        line = [f"  at        {got.where}"] if got.where else []
        return [f"  expected  {name}: {_indent(_short(expected))}", f"  yours     {got}", *line]
    words = in_words(expected, got)
    if _too_large_to_print(expected, got):
        at = tuple(int(i) for i in np.argwhere(~np.isclose(expected, got, rtol=1e-4, atol=1e-9, equal_nan=True))[0])
        entry = f"{name}[{', '.join(map(str, at))}] of shape {expected.shape}"
        return [
            f"  expected  {entry}: {expected[at]:.6g}",
            f"  yours     {entry}: {got[at]:.6g}",
            f"  in words  {words}",
        ]
    return [
        f"  expected  {name}: {_indent(_short(expected))}",
        f"  yours     {name}: {_indent(_short(got))}",
        *([f"  in words  {words}"] if words else []),
    ]


def _too_large_to_print(expected: Any, got: Any) -> bool:
    """Whether two arrays can only be shown by an entry that differs."""
    return (
        isinstance(expected, np.ndarray)
        and isinstance(got, np.ndarray)
        and expected.shape == got.shape
        and expected.size > SHOWN_WHOLE
        and expected.dtype.kind == got.dtype.kind == "f"
        and not np.isclose(expected, got, rtol=1e-4, atol=1e-9, equal_nan=True).all()
    )


def in_words(expected: Any, got: Any) -> str:
    """What differs between two observed values, in one line; "" where the values say it themselves."""
    if isinstance(expected, Raised):
        return f"this should raise {expected.kinds[0]}, and it did not"
    if got is None:
        return "None came back: is a return missing?"
    if not isinstance(expected, np.ndarray):
        return ""
    if not isinstance(got, np.ndarray):
        return f"an array of shape {expected.shape} belongs here, got {_type_name(got)}"
    if got.shape != expected.shape:
        return f"the shape is {got.shape} where {expected.shape} belongs"
    if not kind_fits(expected, got):
        return f"the dtype is {got.dtype} where {expected.dtype} belongs"
    if expected.dtype == bool:
        return _mask_in_words(expected, got)
    if got.dtype.kind == "f" and not np.isfinite(got[np.isfinite(expected)]).all():
        return f"{int((~np.isfinite(got)).sum())} of {got.size} entries are nan or infinite"
    gap = np.abs(got.astype(float) - expected.astype(float))
    wrong = int((gap > 1e-9).sum())
    return f"{wrong} of {got.size} entries differ, the largest gap is {gap[np.isfinite(gap)].max(initial=0):.3g}"


def _mask_in_words(expected: np.ndarray, got: np.ndarray) -> str:
    rows = np.argwhere((expected != got).reshape(-1, expected.shape[-1]).any(axis=1)).ravel()
    want, have = (m.reshape(-1, m.shape[-1]) for m in (expected, got))
    row = rows[0]
    n_want, n_have = int(want[row].sum()), int(have[row].sum())
    keys = "1 key" if n_have == 1 else f"{n_have} keys"
    if n_want == n_have:
        return f"query {row} sees {keys}, as many as it should, but not the same ones"
    return f"query {row} sees {keys} where {n_want} belong{'s' if n_want == 1 else ''}"


def _short(value: Any) -> str:
    """A value in a few lines: whole when small, by shape and first numbers when not."""
    if isinstance(value, np.ndarray):
        if value.dtype == bool:
            value = value.astype(int)
        if value.size <= SHOWN_WHOLE:
            text = np.array2string(value, precision=4, suppress_small=True, max_line_width=90)
            return text if value.size else f"empty, shape {value.shape}"
        first = np.array2string(value.ravel()[:4], precision=4, suppress_small=True)
        return f"shape {value.shape}, beginning {first}"
    if isinstance(value, tuple):
        return "(" + ", ".join(_short(v) for v in value) + ")"
    return str(value)[:300]


def _indent(text: str) -> str:
    """Start what takes several lines on a line of its own, below its label."""
    return "".join("\n" + " " * 12 + line for line in text.splitlines()) if "\n" in text else text


def _type_name(value: Any) -> str:
    if isinstance(value, tuple):
        return "a list or tuple"
    return value if isinstance(value, str) and value.startswith("an object") else f"a {type(value).__name__}"


def draw(failure: Failure) -> tuple[str, str]:
    """A picture of expected beside yours as HTML, and its alt text; empty where the text says it all.

    A mask is drawn cell by cell, floats as heat maps with their difference, a row of counts as bars.
    """
    expected, got = failure.expected, failure.got
    if not (isinstance(expected, np.ndarray) and isinstance(got, np.ndarray)) or expected.size == 0 or got.size == 0:
        return "", ""
    if expected.dtype == bool and got.dtype == bool and expected.shape == got.shape and expected.ndim == 2:
        from kvlab.widgets import MaskDiagram

        diagram = MaskDiagram(got, expected=expected)
        return diagram.to_svg(), diagram.alt
    if expected.ndim == 0 or expected.dtype.kind not in "fiu" or got.dtype.kind not in "fiub" or got.ndim == 0:
        return "", ""
    return _charts(expected.astype(float), got.astype(float))


def _charts(expected: np.ndarray, got: np.ndarray) -> tuple[str, str]:
    from kvlab.style import COLORS, figure_html, subplots

    alt = f"Expected {expected.shape} beside yours {got.shape}. {in_words(expected, got)}."
    if expected.ndim == 1 and got.ndim == 1:
        fig, ax = subplots(figsize=(5.2, 1.9))
        ax.bar(np.arange(expected.size) - 0.2, expected, 0.4, label="expected", color=COLORS["right"])
        ax.bar(np.arange(got.size) + 0.2, got, 0.4, label="yours", color=COLORS["wrong"], hatch="//")
        ax.legend()
        return figure_html(fig, alt), alt
    panels = {"expected": expected, "yours": got}
    if expected.shape == got.shape:
        panels["difference"] = got - expected
    fig, axes = subplots(1, len(panels), figsize=(2.3 * len(panels), 2.1), squeeze=False)
    finite = np.concatenate([a[np.isfinite(a)].ravel() for a in (expected, got)])
    low, high = (finite.min(), finite.max()) if finite.size else (0.0, 1.0)
    for ax, (title, array) in zip(axes[0], panels.items(), strict=True):
        flat = array.reshape(-1, array.shape[-1])[:64, :64]
        largest = np.nanmax(np.abs(np.where(np.isfinite(flat), flat, np.nan)), initial=1e-300)
        limits = (
            {"vmin": -largest, "vmax": largest, "cmap": "PuOr"}
            if title == "difference"
            else {"vmin": low, "vmax": high}
        )
        ax.imshow(flat, aspect="auto", interpolation="nearest", **limits)
        ax.set_title(title)
        ax.grid(False)
        ax.set_xticks([])
        ax.set_yticks([])
    return figure_html(fig, alt), alt
