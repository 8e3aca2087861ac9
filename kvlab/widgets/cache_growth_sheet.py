"""The static twin of CacheGrowth: the whole run on one sheet, a strip a step."""

from typing import Any

import numpy as np

from kvlab.style import COLORS
from kvlab.widgets.twin import EMPTY, FAINT, WIDTH, Box, Picture, Px, plural

NOTHING, READ, IDLE, NEW, AGAIN = range(5)  # what a position is to one layer in one step
LEGEND = {  # drawn in this order, so that a new column is never covered
    READ: (COLORS["cached"], "read from the cache"),
    IDLE: (COLORS["weights"], "in the cache, not read"),
    AGAIN: (COLORS["uncached"], "computed again"),
    NEW: (COLORS["new"], "computed for the first time"),
}
QUANTITIES = {
    "projected": "tokens projected",
    "again": "of them again",
    "stored": "rows stored",
    "bytes": "bytes stored",
    "read": "rows read",
    "scores": "score entries a head",
}
MAX_STEPS, MAX_ROWS = 24, 8
MARGIN, GUTTER, NUMBERS, GAP = 16, 112, 56, 16  # page edge, step names, numbers beside the strips, between strips


def draw(data: dict[str, Any], alt: str) -> str:
    """The sheet as SVG: strips a step with tokens projected beside them, then totals; two runs side by side."""
    return _Sheet(data).render(alt)


class _Sheet:
    def __init__(self, data: dict[str, Any]) -> None:
        self.data, self.picture = data, Picture()
        panels = data["panels"]
        self.alike = all(len(panel["runs"]) == 1 for panel in panels)
        n_steps = len(data["names"])
        self.steps = np.unique(np.linspace(0, n_steps - 1, min(n_steps, MAX_STEPS)).round().astype(int)).tolist()
        self.width: float = (WIDTH - MARGIN - GUTTER - GAP * (len(panels) - 1)) / len(panels) - NUMBERS
        self.cell = min(24, self.width / data["n_positions"])
        self.rows, self.rows_said = self._choose_rows()
        self.row_height = max(3, min(14, 16 // len(self.rows)))
        self.strip = len(self.rows) * self.row_height
        self.pitch = self.strip + 6

    def _choose_rows(self) -> tuple[list[int], str]:
        """The layer that each row of a strip shows, and what to call a strip's rows."""
        n_layers, n_kv_heads = self.data["n_layers"], self.data["n_kv_heads"]
        layers, heads = plural(n_layers, "layer"), plural(n_kv_heads, "KV head")
        if n_layers * n_kv_heads <= MAX_ROWS:
            rows = [layer for layer in range(n_layers) for _ in range(n_kv_heads)]
            return rows, "" if len(rows) == 1 else f"Rows of a strip: {layers} x {heads}."
        if self.alike:
            return [0], f"One row stands for {layers} x {heads}, which are alike."
        drawn = list(range(min(n_layers, MAX_ROWS)))
        part = f"the first {len(drawn)} of {layers}" if len(drawn) < n_layers else layers
        return drawn, f"Rows of a strip: {part}, each standing for {heads}."

    def render(self, alt: str) -> str:
        p, y = self.picture, MARGIN + 12.0
        p.text(MARGIN, y, "What each step computes", 14, bold=True)
        top = y + 48
        for i, step in enumerate(self.steps):
            baseline = top + i * self.pitch + self.strip / 2 + 4
            p.text(MARGIN, baseline, f"{step + 1}", 11, fill=FAINT)
            p.text(MARGIN + 34, baseline, self.data["names"][step], 11)
        for i, panel in enumerate(self.data["panels"]):
            self._panel(panel, GUTTER + i * (self.width + NUMBERS + GAP), top)
        y = top + len(self.steps) * self.pitch + 12
        p.text(MARGIN, y, "step", 11, fill=FAINT)
        y = self._totals(y + 26)
        y = self._legend(y + 14)
        for line in self._notes():
            y += 16
            p.text(MARGIN, y, line, 11, fill=FAINT)
        return p.render(y + MARGIN, "Cache growth, step by step", alt)

    def _panel(self, panel: dict[str, Any], x: Px, top: Px) -> None:
        p, n, height = self.picture, self.data["n_positions"], len(self.steps) * self.pitch
        end = x + n * self.cell
        p.text(x, top - 26, panel["title"], 12, bold=True)
        p.text(x + self.width + NUMBERS, top - 10, "projected" + self._where(), 10, "end", fill=FAINT)
        boxes: dict[int, list[Box]] = {state: [] for state in LEGEND}
        hatch = []
        for i, step in enumerate(self.steps):
            for row, layer in enumerate(self.rows):
                y = top + i * self.pitch + row * self.row_height
                gap = 0.5 if len(self.rows) > 1 else 0
                for a, b, state in panel["runs"][panel["kinds"][layer]][step]:
                    w = max(2.0, (b - a) * self.cell)
                    boxes[state].append((min(x + a * self.cell, end - w), y, w, self.row_height - gap))
                    if state == AGAIN and row == 0:
                        hatch += self._hatch(x + a * self.cell, w, y)
            p.text(
                x + self.width + NUMBERS,
                top + i * self.pitch + self.strip / 2 + 4,
                self._projected(panel, step),
                11,
                "end",
            )
        p.boxes([(x, top + i * self.pitch, n * self.cell, self.strip) for i in range(len(self.steps))], EMPTY)
        for state, (colour, _) in LEGEND.items():
            p.boxes(boxes[state], colour)
        p.lines(hatch, "#ffffff", 1)
        if self.cell >= 4:
            p.lines([(x + i * self.cell, top, 0, height) for i in range(n + 1)], "#ffffff", 1.5)
        self._axis(x, top + height + 8)

    def _hatch(self, x: Px, w: Px, y: Px) -> list[Box]:
        """Slanted lines over a stretch of a strip, cut off at its ends: "computed again" without colour."""
        lines = []
        for d in np.arange(-self.strip + 4, w, 8).tolist():
            left, right = max(d, 0), min(d + self.strip, w)
            lines.append((x + left, y + self.strip - (left - d), right - left, left - right))
        return lines

    def _axis(self, x: Px, y: Px) -> None:
        n = self.data["n_positions"]
        every = next(s for s in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 10**9) if s * self.cell >= 22 or s >= n)
        for i in range(0, n, every):
            self.picture.text(x + (i + 0.5) * self.cell, y + 4, f"{i:,}", 10, "middle", fill=FAINT)
        self.picture.text(x + self.width + NUMBERS, y + 4, "position", 10, "end", fill=FAINT)

    def _where(self) -> str:
        return "" if self.data["n_layers"] == 1 else ", each layer" if self.alike else ", all layers"

    def _projected(self, panel: dict[str, Any], step: int) -> str:
        totals = panel["totals"]
        amount = totals[step][0] - (totals[step - 1][0] if step else 0)
        return f"{amount // self.data['n_layers'] if self.alike else amount:,}"

    def _totals(self, y: Px) -> Px:
        p, n_layers = self.picture, self.data["n_layers"]
        p.text(MARGIN, y, "whole run", 11, bold=True)
        two = n_layers > 1 and self.alike
        for i, panel in enumerate(self.data["panels"]):
            right = GUTTER + i * (self.width + NUMBERS + GAP) + self.width + NUMBERS
            columns = [(right, n_layers)] if two else []
            columns.append((right - 96 if two else right, 1))
            for x, share in columns:
                p.text(x, y, "each layer" if share > 1 else plural(n_layers, "layer"), 10, "end", fill=FAINT)
                for row, total in enumerate(panel["totals"][-1]):
                    p.text(x, y + 17 * (row + 1), f"{total // share:,}", 11, "end")
        for row, words in enumerate(QUANTITIES.values()):
            p.text(MARGIN, y + 17 * (row + 1), words, 11)
        return y + 17 * len(QUANTITIES)

    def _legend(self, y: Px) -> Px:
        x: Px = MARGIN
        for state, colour, words in self.data["legend"]:
            self.picture.rect(x, y, 12, 12, colour)
            if state == AGAIN:
                self.picture.lines([(x, y + 12, 12, -12), (x, y + 6, 6, -6), (x + 6, y + 12, 6, -6)], "#ffffff")
            self.picture.text(x + 18, y + 10, words, 11)
            x += 30 + 6.2 * len(words)
        return y + 12

    def _notes(self) -> list[str]:
        notes = [self.rows_said] if self.rows_said else []
        if len(self.steps) < len(self.data["names"]):
            notes.append(f"{len(self.steps)} of {len(self.data['names']):,} steps are drawn.")
        if self.cell < 4:
            notes.append(f"{self.data['n_positions']:,} positions are drawn to scale, not one by one.")
        return notes
