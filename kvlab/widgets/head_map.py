"""HeadMap: which KV head each query head reads, and what the cache costs."""

from collections.abc import Callable
from typing import Any

import numpy as np
import traitlets

from kvlab.shapes import expect, expect_count, expect_groups
from kvlab.style import COLORS
from kvlab.widgets.explorer import MARGIN, Explorer, Scene, control, expect_index, expect_option
from kvlab.widgets.twin import Px, Refused, plural

MAX_DRAWN = 128  # query heads drawn; of more, the first
TOP, BOTTOM, BOX = 44, 128, 24  # y of query heads and of KV heads, their height
ORDERS = ("interleave", "tile")


class HeadMap(Explorer):
    """Query heads above, KV heads below, a line from each query head to the one it reads; wrong lines are dashed.

    Right is interleaved: query head i reads KV head i // (n_heads / n_kv_heads), as `np.repeat` and `repeat_kv` do.

    Args:
        n_heads, n_kv_heads: query heads, and KV heads that are stored.
        spread: how KV heads are handed out. "interleave", "tile" (as `np.tile`), a row of n_heads KV head numbers, or a
            function `f(x, n_heads)` from (n_kv_heads, n_total, head_dim) to n_heads heads, your `repeat_kv`, which is
            given heads that carry their own number. Drawn as it is, right or wrong.
        head_dim: width of a head.
        bytes_per_element: of a stored number, 0.5 for 4 bits.

    Attributes:
        n_kv_heads: settable to a divisor of n_heads, unless `spread` is a row of numbers.
        order: "yours", "interleave" or "tile".
        head: the query head looked at.

    Raises:
        ValueError: counts that do not divide, heads that mix several KV heads, another number of them, an order or a
            head out of range.

    >>> HeadMap(4, 2, spread="tile")
    4 query heads over 2 KV heads (GQA), tile: 0 reads 0, 1 reads 1, 2 reads 0, 3 reads 1. 2 of 4 read another KV head \
than interleaved. 1,024 bytes a token and layer; with 4 KV heads (MHA) 2,048, with 1 (MQA) 512.
    """

    title = "Which KV head each query head reads"
    height = 250
    arrows = ("head", "n_kv_heads")
    n_kv_heads = traitlets.Int(1).tag(sync=True, draws=True)
    order = traitlets.Unicode("interleave").tag(sync=True, draws=True)
    head = traitlets.Int(0).tag(sync=True, draws=True)

    def __init__(
        self,
        n_heads: int,
        n_kv_heads: int,
        spread: Any = "interleave",
        head_dim: int = 128,
        bytes_per_element: int | float = 2,
    ) -> None:
        self.n_heads = expect_count("n_heads", n_heads, 1)
        expect_groups(self.n_heads, expect_count("n_kv_heads", n_kv_heads, 1))
        self._bytes = 2 * expect_count("head_dim", head_dim, 1) * bytes_per_element
        if not (np.isfinite(self._bytes) and self._bytes > 0):
            raise ValueError(f"bytes_per_element: expected a number above 0, got {bytes_per_element!r}")
        self._spread = None if isinstance(spread, str) else spread
        self._divisors = [n for n in range(1, self.n_heads + 1) if self.n_heads % n == 0]
        self._orders = (*(() if self._spread is None else ("yours",)), *ORDERS)
        if self._spread is not None:
            read_heads(self._spread, self.n_heads, n_kv_heads)
        super().__init__(n_kv_heads=n_kv_heads, order=spread if self._spread is None else "yours")

    @property
    def reads(self) -> list[int]:
        """The KV head that each query head reads."""
        return read_heads(self._spread if self.order == "yours" else self.order, self.n_heads, self.n_kv_heads)

    @property
    def alt(self) -> str:
        """Who reads what, how many read another head than interleaved, and bytes beside MHA and MQA."""
        try:
            reads, right = self.reads, self._right
        except Exception as error:  # the learner's function failed at this size: say so where the learner looks
            return f"No map of {self.n_heads} query heads over {self.n_kv_heads}: {type(error).__name__}: {error}"
        shown = [f"{i} reads {k}" for i, k in enumerate(reads)]
        shown = shown if len(shown) <= 8 else [*shown[:4], "...", shown[-1]]
        wrong = sum(ours != theirs for ours, theirs in zip(reads, right, strict=True))
        said = f"{self._sizes()}, {self.order}: {', '.join(shown)}. "
        said += f"{wrong} of {self.n_heads} read another KV head than interleaved. " if wrong else ""
        mha, mqa = f"with {self.n_heads} KV heads (MHA) {self._amount(self.n_heads)}", f"with 1 (MQA) {self._amount(1)}"
        return f"{said}{self._amount(self.n_kv_heads)} bytes a token and layer; {mha}, {mqa}."

    @property
    def _right(self) -> list[int]:
        return read_heads("interleave", self.n_heads, self.n_kv_heads)

    def _sizes(self) -> str:
        kind = {self.n_heads: "MHA", 1: "MQA"}.get(self.n_kv_heads, "GQA")
        return f"{plural(self.n_heads, 'query head')} over {plural(self.n_kv_heads, 'KV head')} ({kind})"

    def _amount(self, n_kv_heads: int) -> str:
        return f"{n_kv_heads * self._bytes:,.10g}"

    def _controls(self) -> list[dict[str, Any]]:
        fixed = self._spread is not None and not callable(self._spread)
        heads = [] if fixed else [control("n_kv_heads", "KV heads", self._divisors, self.n_kv_heads)]
        return [
            *heads,
            control("order", "handed out", self._orders, self.order, kind="select"),
            control("head", "query head", range(self.n_heads), self.head, kind="keys"),
        ]

    def _said(self) -> str:
        try:
            reads, right = self.reads, self._right
        except Exception:
            return self.alt
        i, k = self.head, reads[self.head]
        others = [str(j) for j, other in enumerate(reads) if other == k and j != i]
        alone = "alone" if not others else f"with {', '.join(others[:8])}{' and more' if len(others) > 8 else ''}"
        wrong = "" if k == right[i] else f" It should read KV head {right[i]}."
        return f"{self._sizes()}. Query head {i} reads KV head {k}, {alone}.{wrong}"

    def _scene(self) -> Scene:
        scene = Scene()
        try:
            reads, right = self.reads, self._right
        except Exception:
            scene.text(MARGIN, 30, self.alt[:100], 12)
            return scene
        n_drawn = min(self.n_heads, MAX_DRAWN)
        left, width = 96, scene.width - 96 - MARGIN
        kv_drawn = sorted({*reads[:n_drawn], *(range(self.n_kv_heads) if n_drawn == self.n_heads else ())})
        query = [left + (i + 0.5) * width / n_drawn for i in range(n_drawn)]
        kv = {k: left + (at + 0.5) * width / len(kv_drawn) for at, k in enumerate(kv_drawn)}
        scene.text(MARGIN, TOP + 16, "query heads", 12)
        scene.text(MARGIN, BOTTOM + 16, "KV heads", 12)
        said = "" if n_drawn == self.n_heads else f", the first {n_drawn} drawn"
        scene.text(MARGIN, 22, f"{self._sizes()}{said}: {self.order}", 13, bold=True)
        lines = [(x, TOP + BOX, kv[reads[i]] - x, BOTTOM - TOP - BOX) for i, x in enumerate(query)]
        right_ones = [reads[i] == right[i] for i in range(n_drawn)]
        scene.lines([line for line, ok in zip(lines, right_ones, strict=True) if ok], COLORS["cached"], 1.2)
        scene.lines([line for line, ok in zip(lines, right_ones, strict=True) if not ok], COLORS["wrong"], 1.5, "5 3")
        if self.head < n_drawn:
            ok = right_ones[self.head]
            scene.lines([lines[self.head]], COLORS["cached" if ok else "wrong"], 3.5, "" if ok else "5 3")
        for i, x in enumerate(query):
            colour = COLORS["new"] if right_ones[i] else COLORS["wrong"]
            self._box(scene, x, TOP, width / n_drawn, i, colour, crossed=not right_ones[i])
            scene.place((x - width / n_drawn / 2, TOP - 8, width / n_drawn, BOTTOM - TOP - 8), "head", i)
        for k, x in kv.items():
            self._box(scene, x, BOTTOM, width / len(kv_drawn), k, COLORS["cached"])
        if self.head < n_drawn:
            w = min(BOX, width / n_drawn - 2)
            scene.ring = (query[self.head] - w / 2, TOP, w, BOX)
        self._bars(scene)
        return scene

    def _box(self, scene: Scene, x: Px, y: Px, pitch: Px, number: int, colour: str, crossed: bool = False) -> None:
        w = max(1.5, min(BOX, pitch - 2))
        scene.rect((x - w / 2, y, w, BOX), colour)
        every = next(n for n in (1, 2, 4, 8, 16, 32, 64) if n * pitch >= 16)
        if number % every == 0:
            at = y - 5 if y == TOP else y + BOX + 13
            scene.text(x, at, str(number), 11, "middle")
        if crossed and w >= 10:
            scene.cross((x - w / 4, y + BOX / 2 - w / 4, w / 2, w / 2), "#ffffff", 2)

    def _bars(self, scene: Scene) -> None:
        """Bytes a token and layer: all heads, this many, one."""
        rows = {"MHA": self.n_heads, "here": self.n_kv_heads, "MQA": 1}
        longest = scene.width - 240 - 2 * MARGIN
        for i, (name, n) in enumerate(rows.items()):
            y = 182 + 18 * i
            scene.text(MARGIN, y + 11, f"{name}: {plural(n, 'KV head')}", 11, bold=name == "here")
            w = longest * n / self.n_heads
            scene.rect((136, y, max(1, w), 13), COLORS["cached" if name == "here" else "weights"])
            scene.text(142 + w, y + 11, f"{self._amount(n)} B", 11, bold=name == "here")
        scene.text(MARGIN, 244, "bytes a token and layer, keys and values", 11, fill="quiet")

    @traitlets.validate("n_kv_heads")
    def _expect_kv_heads(self, proposal: dict[str, Any]) -> int:
        n = int(proposal["value"])
        if self._spread is not None and not callable(self._spread) and self.data and n != self.n_kv_heads:
            raise Refused(f"n_kv_heads: this map shows a row of KV head numbers over {self.n_kv_heads}")
        return int(expect_option("n_kv_heads", n, self._divisors))

    @traitlets.validate("order")
    def _expect_order(self, proposal: dict[str, Any]) -> str:
        return str(expect_option("order", proposal["value"], self._orders))

    @traitlets.validate("head")
    def _expect_head(self, proposal: dict[str, Any]) -> int:
        return expect_index("head", proposal["value"], self.n_heads - 1)


def read_heads(spread: str | Callable[..., Any] | Any, n_heads: int, n_kv_heads: int) -> list[int]:
    """The KV head that each query head reads.

    Raises:
        ValueError: another number of heads than n_heads, or a head that is not one of the KV heads.

    >>> read_heads("interleave", 4, 2), read_heads("tile", 4, 2)
    ([0, 0, 1, 1], [0, 1, 0, 1])
    >>> read_heads(lambda x, n_heads: np.repeat(x, n_heads // len(x), axis=0), 6, 2)
    [0, 0, 0, 1, 1, 1]
    """
    numbers = np.arange(n_kv_heads)
    if isinstance(spread, str):
        group = n_heads // n_kv_heads
        return (np.repeat(numbers, group) if spread == "interleave" else np.tile(numbers, group)).tolist()
    if callable(spread):
        # Two tokens of width 4, each number that of its head: a function that mixes heads or tokens shows itself.
        heads = np.asarray(spread(np.broadcast_to(numbers[:, None, None], (n_kv_heads, 2, 4)).astype(float), n_heads))
        expect("spread's result", heads, ("n_heads", 2, 4), n_heads=n_heads)
        if (heads != heads[:, :1, :1]).any():
            raise ValueError("spread: a head of the result holds numbers of several KV heads")
        row = heads[:, 0, 0]
    else:
        row = np.asarray(spread)
        expect("spread", row, ("n_heads",), n_heads=n_heads)
    others = row[~np.isin(row, numbers)].tolist()
    if others:
        raise ValueError(f"spread: expected KV heads 0 to {n_kv_heads - 1}, got {others[0]!r}")
    return row.astype(int).tolist()
