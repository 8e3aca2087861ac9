"""The static twin of MaskDiagram, and what is said and drawn of a mask, block by block where it is large."""

import re
from typing import Any

import numpy as np
from jaxtyping import Bool

from kvlab.style import COLORS
from kvlab.widgets.twin import EMPTY, FAINT, LINE, WIDTH, Box, Picture, Px

Mask = Bool[np.ndarray, "n_new n_total"]

NONE, ALL, SOME = "012"  # how much of a drawn cell is visible
LEGEND = {
    ALL: (COLORS["cached"], "visible"),
    NONE: (EMPTY, "hidden"),
    SOME: (COLORS["weights"], "partly visible"),
    "differs": (COLORS["wrong"], "differs from expected"),
}
MARGIN, GAP, MAX_CELL, MAX_HEIGHT = 16, 28, 30, 340
MAX_SENTENCES = 6


def block_cells(mask: Mask, block: tuple[int, int]) -> list[str]:
    """One string a drawn row, one character a drawn cell: NONE, ALL or SOME of its block is True.

    >>> block_cells(np.array([[True, True, False, False]]), (1, 2))
    ['10']
    """
    n_new, n_total = mask.shape
    starts = np.arange(0, n_new, block[0]), np.arange(0, n_total, block[1])
    counts = np.add.reduceat(np.add.reduceat(mask.astype(int), starts[0], axis=0), starts[1], axis=1)
    full = np.outer(np.diff([*starts[0], n_new]), np.diff([*starts[1], n_total]))
    cells = np.where(counts == 0, NONE, np.where(counts == full, ALL, SOME))
    return ["".join(row) for row in cells]


def span(first: int, width: int, end: int) -> str:
    """ "5", or "4-7" for a block of 4 positions.

    >>> span(5, 1, 9), span(8, 4, 10)
    ('5', '8-9')
    """
    last = min(first + width, end) - 1
    return str(first) if last == first else f"{first}-{last}"


def key_text(visible: Bool[np.ndarray, "n_total"]) -> str:
    """The keys a query sees, as ranges.

    >>> key_text(np.array([True, True, False, True]))
    'keys 0-1, 3'
    """
    edges = np.flatnonzero(np.diff(np.concatenate([[False], visible, [False]]))).reshape(-1, 2).tolist()
    if not edges:
        return "no key"
    ranges = [span(a, b - a, b) for a, b in edges]
    said = ", ".join(ranges[:4]) + (f" and {len(ranges) - 4} more stretches" if len(ranges) > 4 else "")
    return f"key {said}" if visible.sum() == 1 else f"keys {said}"


def row_texts(given: Mask, expected: Mask | None, height: int) -> list[str]:
    """A sentence for each drawn row: which keys its queries may see, and which they should where that differs."""
    n_new, n_total = given.shape
    texts = []
    for i in range(0, n_new, height):
        at = span(n_total - n_new + i, height, n_total)
        who = f"query at position {at}" if "-" not in at else f"queries at positions {at} together"
        rows = slice(i, i + height)
        said = f"{who} may see {key_text(np.any(given[rows], axis=0))}"
        if expected is not None and (given[rows] != expected[rows]).any():
            said += f", expected {key_text(np.any(expected[rows], axis=0))}"
        texts.append(said)
    return texts


def _stretches(row: str, state: str) -> list[tuple[int, int]]:
    """(first, length) of each stretch of a row's cells in one state."""
    return [(m.start(), m.end() - m.start()) for m in re.finditer(f"{state}+", row)]


def _strike(lines: list[Box], line: Box) -> None:
    """Add a level line, as part of the last one where it goes on from there."""
    if lines and lines[-1][1] == line[1] and abs(lines[-1][0] + lines[-1][2] - line[0]) < 1e-6:
        line = (lines[-1][0], line[1], lines[-1][2] + line[2], 0.0)
        lines.pop()
    lines.append(line)


def draw(data: dict[str, Any], alt: str) -> str:
    """The masks side by side as SVG, with a sentence for each of the first rows that matter."""
    return _Sheet(data).render(alt)


class _Sheet:
    def __init__(self, data: dict[str, Any]) -> None:
        self.data, self.picture = data, Picture()
        self.n_rows, self.n_columns = len(data["panels"][0]), len(data["panels"][0][0])
        self.tokens = data["tokens"] if data["block"] == (1, 1) else []
        self.left = max(44, 7 * max(map(len, self._row_names())) + 10)
        self.head = 6 * min(8, max(map(len, self.tokens))) + 6 if self.tokens else 0
        self.panel_width = (WIDTH - 2 * MARGIN - GAP * (len(data["panels"]) - 1)) / len(data["panels"])
        self.cell = min(MAX_CELL, (self.panel_width - self.left) / self.n_columns, MAX_HEIGHT / self.n_rows)

    def _row_names(self) -> list[str]:
        tokens = self.tokens[-self.n_rows :] if self.tokens else [""] * self.n_rows
        return [f"{at} {token[:8]}".strip() for at, token in zip(self.data["row_labels"], tokens, strict=True)]

    def render(self, alt: str) -> str:
        p, top = self.picture, MARGIN + 58 + self.head
        if self.data["problem"]:
            p.text(MARGIN, MARGIN + 12, self.data["problem"][:100], 12, bold=True)
            return p.render(MARGIN * 2 + 16, "Mask", alt)
        for i, cells in enumerate(self.data["panels"]):
            self._panel(self.data["titles"][i], cells, MARGIN + i * (self.panel_width + GAP), top)
        y = self._legend(top + self.n_rows * self.cell + 16)
        for line in self._sentences():
            y += 17
            p.text(MARGIN, y, line, 11)
        return p.render(y + MARGIN, "Mask: who may look at whom", alt)

    def _panel(self, title: str, cells: list[str], x: Px, top: Px) -> None:
        p, c, grid = self.picture, self.cell, x + self.left
        p.text(x, MARGIN + 12, title.capitalize(), 13, bold=True)
        p.text(grid, MARGIN + 32, "key at position", 10, fill=FAINT)
        p.text(grid - 6, top - 7, "query", 10, "end", fill=FAINT)
        for state in (NONE, ALL, SOME):
            boxes = [
                (grid + j * c, top + i * c, n * c, c) for i, row in enumerate(cells) for j, n in _stretches(row, state)
            ]
            p.boxes(boxes, LEGEND[state][0])
        if c >= 8:
            down = [(grid + j * c, top, 0, self.n_rows * c) for j in range(1, self.n_columns)]
            p.lines(down + [(grid, top + i * c, self.n_columns * c, 0) for i in range(1, self.n_rows)], "#ffffff")
        p.frame(grid, top, self.n_columns * c, self.n_rows * c, LINE)
        self._marks(cells, grid, top)
        self._names(grid, top)

    def _marks(self, cells: list[str], x: Px, y: Px) -> None:
        """Cells that differ: each framed and crossed, white on a filled cell; small ones struck through."""
        c, colour = self.cell, COLORS["wrong"]
        thick = 2 if c >= 12 else 1
        on_empty: list[Box] = []
        on_filled: list[Box] = []
        frames: list[Box] = []
        for i, row in enumerate(self.data["differs"]):
            for j, n in _stretches(row, ALL) + _stretches(row, SOME):
                for k in range(j, j + n):
                    marks = on_empty if cells[i][k] == NONE else on_filled
                    left, up, arm = x + (k + 0.32) * c, y + (i + 0.32) * c, 0.36 * c
                    if c < 12:
                        _strike(marks, (x + k * c, y + (i + 0.5) * c, c, 0.0))
                        continue
                    frames.append((left - 0.32 * c + 1.5, up - 0.32 * c + 1.5, c - 3, c - 3))
                    marks += [(left, up, arm, arm), (left, up + arm, arm, -arm)]
        self.picture.frames(frames, colour, thick)
        self.picture.lines(on_empty, colour, thick)
        self.picture.lines(on_filled, "#ffffff", thick)

    def _names(self, x: Px, y: Px) -> None:
        p, c = self.picture, self.cell
        names = self._row_names()
        every = next(s for s in (1, 2, 4, 8, 16, 32, 64) if s * c >= 12)
        for i in range(0, self.n_rows, every):
            p.text(x - 6, y + (i + 0.5) * c + 4, names[i], 11, "end")
        wide = 7 * max(map(len, self.data["column_labels"])) + 4
        every = next(s for s in (1, 2, 4, 8, 16, 32, 64) if s * c >= wide or s >= self.n_columns)
        for j in range(0, self.n_columns, every):
            if wide > 2 * c:  # several to a label: it stands over the first of them
                p.text(x + j * c, y - 7, self.data["column_labels"][j], 11)
            else:
                p.text(x + (j + 0.5) * c, y - 7, self.data["column_labels"][j], 11, "middle")
        for j, token in enumerate(self.tokens):
            p.text(x + (j + 0.5) * c + 4, y - 22, token[:8], 11, turn=-90)

    def _legend(self, y: Px) -> Px:
        p, x = self.picture, float(MARGIN)
        present = {cell for panel in self.data["panels"] for row in panel for cell in row}
        present |= {"differs"} if self.data["n_differ"] else set()
        for state, (colour, words) in LEGEND.items():
            if state not in present:
                continue
            if state == "differs":
                crossed: list[Box] = [(x + 4, y + 4, 4, 4), (x + 4, y + 8, 4, -4)]
                p.frame(x + 1, y + 1, 10, 10, colour if self.cell >= 12 else LINE, 2 if self.cell >= 12 else 1)
                p.lines(crossed if self.cell >= 12 else [(x, y + 6, 12, 0)], colour, 1.5)
            else:
                p.rect(x, y, 12, 12, colour, LINE)
            p.text(x + 18, y + 10, words, 11)
            x += 36 + 6 * len(words)
        return y + 12

    def _sentences(self) -> list[str]:
        """Rows that differ if any do, else all, as many as a reader takes in; then what the picture leaves out."""
        d = self.data
        rows = [text for text, row in zip(d["rows"], d["differs"], strict=True) if row.strip(NONE)] or d["rows"]
        said = [f"{text}." for text in rows[:MAX_SENTENCES]]
        if len(rows) > MAX_SENTENCES:
            said[-1] = f"... and so on, to: {rows[-1]}."
        if len(d["panels"]) > 1:
            said.insert(0, f"{d['n_differ']:,} of {d['n_new'] * d['n_total']:,} cells differ.")
        if d["block"] != (1, 1):
            said.append(f"Each drawn cell stands for {d['block'][0]} x {d['block'][1]} of the mask's (queries x keys).")
        return [s[0].upper() + s[1:] for s in said]
