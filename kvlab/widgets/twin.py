"""What every widget shares: a static twin beside the live view, refusals that traitlets can roll back, plain SVG."""

from abc import abstractmethod
from html import escape
from typing import Any

import anywidget
import traitlets

WIDTH = 700  # of a notebook page, in px
INK, FAINT = "#1a1a1a", "#767676"  # text on the white card that every static picture stands on
EMPTY, LINE = "#f2f2f2", "#c8c8c8"

Px = int | float  # both named, since the shape checker of the tests does not take an int for a float
Box = tuple[Px, Px, Px, Px]  # x, y, width, height of a rectangle; x, y, dx, dy of a line


class Refused(traitlets.TraitError, ValueError):
    """A trait's value was refused. A ValueError for callers; a TraitError, so that traitlets restores the old value."""


class StaticTwin(anywidget.AnyWidget):
    """A widget that also displays as an SVG picture with alt text, made from the same data.

    A page with no kernel (a Git host, an HTML export, a print) shows the picture; `repr` says the same in a line.
    """

    @property
    @abstractmethod
    def alt(self) -> str:
        """What the picture shows, with its numbers, in one line."""

    @abstractmethod
    def to_svg(self) -> str:
        """The static twin: one SVG element that says its own title and description; the same bytes in every run."""

    def __repr__(self) -> str:
        return self.alt

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        data, metadata = super()._repr_mimebundle_(**kwargs) or ({}, {})
        data |= {"text/plain": self.alt, "image/svg+xml": self.to_svg()}
        return data, metadata | {"image/svg+xml": {"alt": self.alt}}


class Picture:
    """An SVG drawn on a white card, piece by piece, with presentation attributes only: readable on any page.

    >>> picture = Picture()
    >>> picture.text(10, 20, "a < b")
    >>> picture.render(30, "title", "description").count("a &lt; b")
    1
    """

    def __init__(self, width: Px = WIDTH) -> None:
        self.width = width
        self._parts: list[str] = []

    def rect(self, x: Px, y: Px, w: Px, h: Px, fill: str, stroke: str = "none", thick: Px = 1) -> None:
        """A rectangle with its upper left corner at (x, y)."""
        edge = "" if stroke == "none" else f' stroke="{stroke}" stroke-width="{_n(thick)}"'
        self._parts.append(f'<rect x="{_n(x)}" y="{_n(y)}" width="{_n(w)}" height="{_n(h)}" fill="{fill}"{edge}/>')

    def frame(self, x: Px, y: Px, w: Px, h: Px, stroke: str, thick: Px = 1) -> None:
        """A rectangle that is only an edge."""
        self.rect(x, y, w, h, "none", stroke, thick)

    def frames(self, boxes: list[Box], stroke: str, thick: Px = 1) -> None:
        """The edges of many rectangles as one path."""
        if boxes:
            self._parts.append(
                f'<path d="{_outlines(boxes)}" fill="none" stroke="{stroke}" stroke-width="{_n(thick)}"/>'
            )

    def boxes(self, boxes: list[Box], fill: str) -> None:
        """Many (x, y, w, h) rectangles of one colour as one path, a third of the bytes."""
        if boxes:
            self._parts.append(f'<path d="{_outlines(boxes)}" fill="{fill}"/>')

    def lines(self, lines: list[Box], stroke: str, thick: Px = 1) -> None:
        """Many straight lines from (x, y) by (dx, dy) as one path."""
        if lines:
            d = "".join(f"M{_n(x)} {_n(y)}l{_n(dx)} {_n(dy)}" for x, y, dx, dy in lines)
            self._parts.append(f'<path d="{d}" fill="none" stroke="{stroke}" stroke-width="{_n(thick)}"/>')

    def text(
        self,
        x: Px,
        y: Px,
        text: str,
        size: Px = 12,
        anchor: str = "start",
        *,
        bold: bool = False,
        fill: str = INK,
        turn: Px = 0,
    ) -> None:
        """One line of text with its baseline at y, turned by degrees about (x, y)."""
        extra = ("" if anchor == "start" else f' text-anchor="{anchor}"') + (' font-weight="bold"' if bold else "")
        extra += f' transform="rotate({_n(turn)} {_n(x)} {_n(y)})"' if turn else ""
        colour = "" if fill == INK else f' fill="{fill}"'
        self._parts.append(f'<text x="{_n(x)}" y="{_n(y)}" font-size="{_n(size)}"{extra}{colour}>{escape(text)}</text>')

    def render(self, height: Px, title: str, desc: str) -> str:
        """The whole picture as one SVG element of this height."""
        w, h = _n(self.width), _n(height)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{w}" height="{h}" viewBox="0 0 {w} {h}" role="img" '
            f'aria-label="{escape(desc)}" font-family="sans-serif" fill="{INK}">'
            f"<title>{escape(title)}</title><desc>{escape(desc)}</desc>"
            f'<rect width="{w}" height="{h}" rx="4" fill="#ffffff"/>{"".join(self._parts)}</svg>'
        )


def plural(n: int, word: str, several: str = "") -> str:
    """1 layer, 2 layers."""
    return f"{n:,} {word if n == 1 else several or word + 's'}"


def _outlines(boxes: list[Box]) -> str:
    return "".join(f"M{_n(x)} {_n(y)}h{_n(w)}v{_n(h)}h{_n(-w)}z" for x, y, w, h in boxes)


def _n(x: Px) -> str:
    """A coordinate to a hundredth, in as few characters as it takes."""
    return f"{round(float(x), 2):.10g}"
