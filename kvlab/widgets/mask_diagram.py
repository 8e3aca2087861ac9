"""MaskDiagram: who may look at whom, and where a mask differs from the one expected."""

from collections.abc import Callable, Sequence
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

import numpy as np
import traitlets

from kvlab.shapes import expect, expect_count
from kvlab.widgets.mask_sheet import LEGEND, Mask, block_cells, draw, row_texts, span
from kvlab.widgets.mask_variants import VARIANTS
from kvlab.widgets.twin import Refused, StaticTwin, plural

MAX_DRAWN = 64  # queries or keys drawn one by one; when there are more, several share a cell
LEAST_REACH = 16  # the sliders go at least this far


class MaskDiagram(StaticTwin):
    """A mask as a grid, queries down and keys across, beside the mask it should be; cells that differ are marked.

    Query i stands at position n_total - n_new + i, and its row is labelled so.

    Args:
        mask: (n_new, n_total), True (or 1) where the query may look; or a function `f(n_new, n_total)` that makes one,
            which gives the diagram two sliders; or a name: "causal", "window" (window=), "sinks" (window=, n_sinks=),
            "left padding" (n_pad=), "packed" (length=, of each sequence). Drawn as it is, right or wrong.
        expected: the mask it should be, an array, a function or a name; None draws `mask` alone.
        n_new, n_total: sizes to begin with, needed when there are only functions.
        labels: one text a key position, such as its token.
        sizes: what else a function takes, such as window=4: each is passed on by name and gets a slider.

    Attributes:
        n_new, n_total, sizes: the sizes drawn; settable while the sliders are there.
        row, column: the cell looked at, counted from 0: query `row` and key position `column`.

    Raises:
        ValueError: an array of another rank, with values besides 0 and 1, with no query or with more queries than keys;
            masks of two shapes; sizes that contradict an array, or that no function takes; an unknown name; too few
            labels; a size or a cell out of range.

    >>> MaskDiagram(np.tril(np.ones((2, 4))), expected=[[1, 1, 1, 0], [1, 1, 1, 1]])
    Mask of 2 queries over 4 keys: query at position 2 may see key 0, expected keys 0-2; query at position 3 may see \
keys 0-1, expected keys 0-3. 4 of 8 cells differ from the expected mask.
    """

    _esm = Path(__file__).with_suffix(".js")
    _css = Path(__file__).with_suffix(".css")
    data = traitlets.Dict().tag(sync=True)
    n_new = traitlets.Int(1).tag(sync=True)
    n_total = traitlets.Int(1).tag(sync=True)
    sizes = traitlets.Dict().tag(sync=True)
    row = traitlets.Int(0).tag(sync=True)
    column = traitlets.Int(0).tag(sync=True)

    def __init__(
        self,
        mask: Any,
        expected: Any = None,
        *,
        n_new: int | None = None,
        n_total: int | None = None,
        labels: Sequence[str] | None = None,
        **sizes: int,
    ) -> None:
        given = {"mask": mask} | ({} if expected is None else {"expected": expected})
        self._sources = {name: _source(name, m) for name, m in given.items()}
        self._taken = {name: _taken(m, sizes) for name, m in self._sources.items() if callable(m)}
        for name in sizes:
            expect_count(name, sizes[name])
            if not any(name in taken for taken in self._taken.values()):
                raise ValueError(f"{name}: neither mask nor expected is a function that takes it")
        self._labels = None if labels is None else [str(label) for label in labels]
        self._fixed: tuple[int, int] | None = next((m.shape for m in self._sources.values() if not callable(m)), None)
        start = self._start(n_new, n_total)
        self._reach = len(self._labels) if self._labels else max(LEAST_REACH, start[1])
        self._masks = self._make(*start, sizes)
        super().__init__(n_new=start[0], n_total=start[1], sizes=sizes, data=self._data(*start, sizes))

    @property
    def alt(self) -> str:
        """The mask in a line: what each query sees (the first and the last of many), and how many cells differ."""
        said: str = self.data["problem"] or self.data["alt"]
        return said

    def to_svg(self) -> str:
        """The given mask and the expected one side by side, as they are at the present sizes."""
        return draw(self.data, self.alt)

    def _start(self, n_new: int | None, n_total: int | None) -> tuple[int, int]:
        """The sizes to begin with, from an array if there is one."""
        asked = {"n_new": n_new, "n_total": n_total}
        if self._fixed is None:
            if n_new is None or n_total is None:
                raise ValueError("MaskDiagram: a function needs sizes to begin with, pass n_new= and n_total=")
            sizes = (expect_count("n_new", n_new, 1), expect_count("n_total", n_total, 1))
            if sizes[0] > sizes[1]:
                raise ValueError(f"n_new: {n_new} queries cannot stand at the end of {n_total} keys")
        else:
            sizes = self._fixed
            for (name, size), true_size in zip(asked.items(), sizes, strict=True):
                if size is not None and size != true_size:
                    raise ValueError(f"{name}: {size} contradicts an array of shape {sizes}")
        if self._labels is not None and len(self._labels) < sizes[1]:
            raise ValueError(f"labels: expected one a key position, {sizes[1]}, got {len(self._labels)}")
        return sizes

    def _make(self, n_new: int, n_total: int, sizes: dict[str, int]) -> dict[str, Mask]:
        """Every mask at these sizes."""
        masks = {}
        for name, source in self._sources.items():
            if callable(source):
                more = {taken: sizes[taken] for taken in self._taken[name]}
                masks[name] = _expect_mask(name, source(n_new, n_total, **more))
            else:
                masks[name] = source
            expect(name, masks[name], ("n_new", "n_total"), n_new=n_new, n_total=n_total)
        return masks

    def _data(self, n_new: int, n_total: int, sizes: dict[str, int]) -> dict[str, Any]:
        """What the browser and the static twin draw."""
        given, expected = self._masks["mask"], self._masks.get("expected")
        masks = [given] if expected is None else [given, expected]
        block = (-(-n_new // MAX_DRAWN), -(-n_total // MAX_DRAWN))
        rows = row_texts(given, expected, block[0])
        differs = given != masks[-1]
        n_differ = int(differs.sum())
        shown = rows if len(rows) <= 4 else [rows[0], "...", rows[-1]]
        more = "".join(f", {name} {size}" for name, size in sizes.items())
        alt = f"Mask of {plural(n_new, 'query', 'queries')} over {plural(n_total, 'key')}{more}: {'; '.join(shown)}."
        if expected is not None:
            alt += f" {n_differ:,} of {given.size:,} cells differ from the expected mask."
        return {
            "n_new": n_new,
            "n_total": n_total,
            "sizes": sizes,
            "sliders": self._fixed is None,
            "reach": max(self._reach, n_total),
            "block": block,
            "titles": ["mask"] if expected is None else ["given", "expected"],
            "panels": [block_cells(mask, block) for mask in masks],
            "differs": block_cells(differs, block),
            "n_differ": n_differ,
            "rows": rows,
            "row_labels": [span(n_total - n_new + i, block[0], n_total) for i in range(0, n_new, block[0])],
            "column_labels": [span(i, block[1], n_total) for i in range(0, n_total, block[1])],
            "tokens": self._labels[:n_total] if self._labels else [],
            "legend": LEGEND,
            "alt": alt,
            "problem": "",
        }

    @traitlets.validate("n_new", "n_total")
    def _expect_size(self, proposal: dict[str, Any]) -> int:
        name, size = proposal["trait"].name, int(proposal["value"])
        if not self.data:  # the constructor has checked
            return size
        n_new, n_total = (size if name == n else getattr(self, n) for n in ("n_new", "n_total"))
        if self._fixed is not None and (n_new, n_total) != self._fixed:
            raise Refused(
                f"{name}: this diagram shows an array of shape {self._fixed}, give it a function to resize it"
            )
        if not 1 <= n_new <= n_total:
            raise Refused(f"{name}: expected 1 <= n_new <= n_total, got n_new {n_new} and n_total {n_total}")
        if self._labels is not None and n_total > len(self._labels):
            raise Refused(f"n_total: {n_total} keys, but labels for {len(self._labels)}")
        return size

    @traitlets.validate("sizes")
    def _expect_sizes(self, proposal: dict[str, Any]) -> dict[str, int]:
        sizes = dict(proposal["value"])
        names = list(self.data["sizes"]) if self.data else list(sizes)
        if list(sizes) != names:
            raise Refused(f"sizes: expected {', '.join(names) or 'none'}, got {', '.join(sizes) or 'none'}")
        for name, size in sizes.items():
            if not isinstance(size, int) or isinstance(size, bool) or size < 0:
                raise Refused(f"{name}: expected a whole number of at least 0, got {size!r}")
        return sizes

    @traitlets.validate("row", "column")
    def _expect_cell(self, proposal: dict[str, Any]) -> int:
        name, index = proposal["trait"].name, int(proposal["value"])
        size = self.n_new if name == "row" else self.n_total
        if not 0 <= index < size:
            raise Refused(f"{name}: expected 0 to {size - 1}, got {index}")
        return index

    @traitlets.observe("n_new", "n_total", "sizes")
    def _resize(self, change: dict[str, Any]) -> None:
        n_new, n_total, sizes = self.n_new, self.n_total, dict(self.sizes)
        if not self.data or (n_new, n_total, sizes) == tuple(self.data[name] for name in ("n_new", "n_total", "sizes")):
            return
        self.row, self.column = min(self.row, n_new - 1), min(self.column, n_total - 1)
        try:
            self._masks = self._make(n_new, n_total, sizes)
            self.data = self._data(n_new, n_total, sizes)
        except Exception as error:  # the learner's function failed: say so where the learner looks
            more = "".join(f", {name} {size}" for name, size in sizes.items())
            said = f"No mask for {n_new} new and {n_total} in all{more}: {type(error).__name__}: {error}"
            self.data = self.data | {"n_new": n_new, "n_total": n_total, "sizes": sizes, "problem": said}


def _source(name: str, mask: Any) -> Any:
    """The array or function that a mask is given as, by name too."""
    if isinstance(mask, str):
        if mask not in VARIANTS:
            raise ValueError(f"{name}: no mask is called {mask!r}, there are: {', '.join(VARIANTS)}")
        return VARIANTS[mask]
    return mask if callable(mask) else _expect_mask(name, mask)


def _taken(function: Callable[..., Any], sizes: dict[str, int]) -> list[str]:
    """Those of the sizes that a function takes by name."""
    parameters = signature(function).parameters.values()
    if any(p.kind is Parameter.VAR_KEYWORD for p in parameters):
        return list(sizes)
    names = [p.name for p in parameters if p.kind is not Parameter.POSITIONAL_ONLY]
    return [name for name in sizes if name in names]


def _expect_mask(name: str, mask: Any) -> Mask:
    """A mask as bools; ValueError unless it is (n_new, n_total) of 0s and 1s with 1 <= n_new <= n_total."""
    try:
        array = np.asarray(mask)
    except ValueError:
        raise ValueError(f"{name}: expected shape (n_new, n_total), got rows of unequal length") from None
    sizes = expect(name, array, ("n_new", "n_total"))
    if not 1 <= sizes["n_new"] <= sizes["n_total"]:
        raise ValueError(f"{name}: expected 1 <= n_new <= n_total, got shape {array.shape}")
    others = array[~np.isin(array, (0, 1))].tolist()
    if others:
        raise ValueError(f"{name}: expected True (1) where a query may look, else False (0), got {others[0]!r}")
    return array.astype(bool)
