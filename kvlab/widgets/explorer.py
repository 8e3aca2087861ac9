"""What the explorers share: Python draws one scene from real numbers, the page shows it, and the static twin is it.

A subclass has synced traits and a `_scene` made from them; a control in the page sets a trait, the trait's change makes
a new scene. So the picture, the words and Python cannot tell of different states.
"""

from abc import abstractmethod
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import traitlets

from kvlab.widgets.twin import EMPTY, FAINT, INK, LINE, WIDTH, Box, Picture, Px, Refused, StaticTwin

MARGIN = 16
TONES = {"ink": INK, "quiet": FAINT, "empty": EMPTY, "line": LINE, "paper": "#ffffff"}  # the page's theme has its own


class Scene:
    """Shapes as the page and the static twin draw them, and places that answer a pointer.

    A colour is a hex code, or a name of TONES that follows the page's theme.

    >>> scene = Scene()
    >>> scene.text(16, 20, "a < b")
    >>> scene.shapes
    [['text', {'x': 16, 'y': 20, 'font-size': 12}, 'a < b']]
    """

    def __init__(self, width: Px = WIDTH) -> None:
        self.width = width
        self.shapes: list[list[Any]] = []
        self.places: list[list[Any]] = []
        self.ring: Box | None = None

    def rect(self, box: Box, fill: str = "none", stroke: str = "none", thick: Px = 1, dashed: bool = False) -> None:
        """A rectangle (x, y, width, height)."""
        x, y, w, h = (_short(n) for n in box)
        edge = {} if stroke == "none" else {"stroke": stroke, "stroke-width": thick}
        dash = {"stroke-dasharray": "4 3"} if dashed else {}
        self.shapes.append(["rect", {"x": x, "y": y, "width": w, "height": h, "fill": fill} | edge | dash, ""])

    def curve(self, points: Sequence[tuple[Px, Px]], stroke: str, thick: Px = 1.5, dash: str = "") -> None:
        """Points joined by straight lines."""
        d = "M" + "L".join(f"{_short(x)} {_short(y)}" for x, y in points)
        dashes = {"stroke-dasharray": dash} if dash else {}
        self.shapes.append(["path", {"d": d, "fill": "none", "stroke": stroke, "stroke-width": thick} | dashes, ""])

    def boxes(self, boxes: Sequence[Box], fill: str, stroke: str = "none", dash: str = "") -> None:
        """Many rectangles of one colour as one path, a third of the bytes."""
        if boxes:
            d = "".join(f"M{_short(x)} {_short(y)}h{_short(w)}v{_short(h)}h{_short(-w)}z" for x, y, w, h in boxes)
            edge = {} if stroke == "none" else {"stroke": stroke}
            dashes = {"stroke-dasharray": dash} if dash else {}
            self.shapes.append(["path", {"d": d, "fill": fill} | edge | dashes, ""])

    def lines(self, lines: Sequence[Box], stroke: str, thick: Px = 1.5, dash: str = "") -> None:
        """Many straight lines from (x, y) by (dx, dy) as one path."""
        if lines:
            d = "".join(f"M{_short(x)} {_short(y)}l{_short(dx)} {_short(dy)}" for x, y, dx, dy in lines)
            dashes = {"stroke-dasharray": dash} if dash else {}
            self.shapes.append(["path", {"d": d, "fill": "none", "stroke": stroke, "stroke-width": thick} | dashes, ""])

    def cross(self, box: Box, stroke: str, thick: Px = 1.5) -> None:
        """The two diagonals of a box."""
        x, y, w, h = box
        self.curve([(x, y), (x + w, y + h)], stroke, thick)
        self.curve([(x, y + h), (x + w, y)], stroke, thick)

    def mark(self, x: Px, y: Px, fill: str, kind: str = "round", size: Px = 5) -> None:
        """A point of a chart, whose shape says what it is as well as its colour."""
        if kind == "round":
            at = {"cx": _short(x), "cy": _short(y), "r": size, "fill": fill, "stroke": "paper", "stroke-width": 1.5}
            self.shapes.append(["circle", at, ""])
        else:
            self.rect((x - size, y - size, 2 * size, 2 * size), fill, "paper", 1.5)

    def text(
        self,
        x: Px,
        y: Px,
        text: str,
        size: Px = 12,
        anchor: str = "start",
        fill: str = "ink",
        bold: bool = False,
    ) -> None:
        """One line of text with its baseline at y."""
        extra: dict[str, Any] = {} if anchor == "start" else {"text-anchor": anchor}
        extra |= {} if fill == "ink" else {"fill": fill}
        extra |= {"font-weight": "bold"} if bold else {}
        self.shapes.append(["text", {"x": _short(x), "y": _short(y), "font-size": size} | extra, text])

    def place(self, box: Box, control: str, index: int) -> None:
        """A pointer over this box sets a control to its option `index`."""
        self.places.append([*(_short(n) for n in box), control, index])

    def svg(self, height: Px, title: str, desc: str) -> str:
        """The scene on a white card, as it stands where no kernel runs."""
        picture = Picture(self.width)
        picture._parts = [_markup(*shape) for shape in self.shapes]
        return picture.render(height, title, desc)


class Explorer(StaticTwin):
    """A widget drawn by Python: see the module.

    A subclass tags its traits with `draws=True` and defines `_scene`, `_controls`, `_said` and `alt`.
    """

    _esm = Path(__file__).with_suffix(".js")
    _css = Path(__file__).with_suffix(".css")
    title = ""
    height: Px = 300
    arrows: tuple[str, ...] = ()  # the controls that the arrow keys move: across, and up and down
    data = traitlets.Dict().tag(sync=True)

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        self.data = self._data()
        self.observe(self._redraw, list(self.traits(draws=True)))

    @abstractmethod
    def _scene(self) -> Scene:
        """The picture of the present state."""

    @abstractmethod
    def _controls(self) -> list[dict[str, Any]]:
        """What sets a trait: see `control`."""

    @abstractmethod
    def _said(self) -> str:
        """The present state in words, spoken when it changes."""

    def to_svg(self) -> str:
        """The picture of the present state on a white card."""
        return self._scene().svg(self.height, self.title, self.alt)

    def _data(self) -> dict[str, Any]:
        scene = self._scene()
        return {
            "title": self.title,
            "alt": self.alt,
            "size": [scene.width, self.height],
            "shapes": scene.shapes,
            "places": scene.places,
            "ring": scene.ring,
            "controls": self._controls(),
            "arrows": self.arrows,
            "said": self._said(),
        }

    def _redraw(self, change: dict[str, Any]) -> None:
        self.data = self._data()


def control(
    name: str, label: str, options: Sequence[Any], at: Any, shown: Sequence[str] | None = None, kind: str = "range"
) -> dict[str, Any]:
    """A control that sets the trait `name` to one of `options`.

    Args:
        name: of the trait.
        label: beside the control.
        options: its values in order.
        at: the present value; a value off the list stands at the nearest before it.
        shown: the options in words.
        kind: "range" (a slider), "select", "play" (a slider with buttons) or "keys" (only the arrow keys).
    """
    words = [str(option) for option in options] if shown is None else list(shown)
    return {"name": name, "label": label, "kind": kind, "options": list(options), "shown": words, "at": str(at)}


def expect_option(name: str, value: Any, options: Sequence[Any]) -> Any:
    """The value, if it is one of the options; else a refusal that lists them."""
    if value not in options:
        raise Refused(f"{name}: expected one of {', '.join(map(str, options))}, got {value!r}")
    return value


def expect_index(name: str, value: int, last: int) -> int:
    """The value, if it is 0 to `last`; else a refusal."""
    if not 0 <= value <= last:
        raise Refused(f"{name}: expected 0 to {last}, got {value}")
    return value


def _short(x: Px) -> Px:
    """A coordinate to a hundredth."""
    short = round(float(x), 2)
    return int(short) if short == int(short) else short


def _markup(tag: str, attributes: dict[str, Any], text: str) -> str:
    said = "".join(f' {name}="{TONES.get(str(value), value)}"' for name, value in attributes.items())
    return f"<{tag}{said}>{escape(text)}</{tag}>" if text else f"<{tag}{said}/>"
