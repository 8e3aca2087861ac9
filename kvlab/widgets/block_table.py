"""BlockTable: which blocks of a pool each sequence holds, event by event."""

from collections.abc import Mapping, Sequence
from typing import Any

import traitlets

from kvlab.shapes import expect_count
from kvlab.style import COLORS
from kvlab.widgets.block_replay import Moment, replay
from kvlab.widgets.explorer import MARGIN, Explorer, Scene, control, expect_index
from kvlab.widgets.twin import Box, Px, plural

MAX_SEQUENCES, MAX_LOGICAL, MAX_PHYSICAL = 8, 7, 60  # drawn; of more, the first
ROW, BOX, POOL_X, POOL_BOX, POOL_COLUMNS = 44, 44, 452, 34, 6
TOP = 64


class BlockTable(Explorer):
    """Sequences, their block tables, and the pool with reference counts and the free list, step by step from a trace.

    Args:
        events: the trace, a list of dicts in the order in which they happened. `block` is a physical block, a number
            from 0; `sequence` is a name.

            {"do": "allocate", "sequence": "a", "block": 3}           a's next logical block is block 3
            {"do": "write", "sequence": "a", "n_tokens": 5}           5 tokens go into a's next slots
            {"do": "fork", "sequence": "a", "to": "b"}                b is a new sequence that shares a's blocks
            {"do": "copy", "sequence": "b", "index": 0, "block": 7}   b's logical block 0 moves to block 7, contents
                                                                      copied; the old one is let go
            {"do": "share", "sequence": "c", "block": 3}              c's next logical block is block 3, full already
            {"do": "drop", "sequence": "c", "block": 3}               c, an index of full blocks, lets go of block 3
            {"do": "release", "sequence": "a"}                        a ends and lets go of all its blocks

            Counts and the free list follow from these. What a right pool never does is drawn and named: a block that is
            handed out while somebody holds it, a shared block that is written, a write past the table.
        n_blocks: in the pool.
        block_size: tokens in one block.

    Attributes:
        step: 0 before the run, k after `events[k - 1]`.

    Raises:
        ValueError: no event, an unknown one, a missing field, a block outside of the pool, an unknown sequence.

    >>> BlockTable([{"do": "allocate", "sequence": "a", "block": 2}, {"do": "write", "sequence": "a", "n_tokens": 3},
    ...             {"do": "fork", "sequence": "a", "to": "b"}], n_blocks=4, block_size=4)
    Block tables after event 3 of 3: b is forked from a: 1 block shared, none copied. a: 3 tokens in block 2; b: 3 \
tokens in block 2. 1 of 4 blocks in use, 1 of them shared; free: 0, 1, 3. 3 of 4 slots in use hold a token.
    """

    title = "Sequences and their blocks"
    arrows = ("step",)
    step = traitlets.Int(0).tag(sync=True, draws=True)

    def __init__(self, events: Sequence[Mapping[str, Any]], n_blocks: int, block_size: int) -> None:
        self.n_blocks = expect_count("n_blocks", n_blocks, 1)
        self.block_size = expect_count("block_size", block_size, 1)
        if isinstance(events, str | Mapping) or not isinstance(events, Sequence) or not events:
            said = "an empty list" if isinstance(events, Sequence) and not events else type(events).__name__
            raise ValueError(f"events: expected a list of at least one event, got {said}")
        self.moments = replay(events, self.n_blocks, self.block_size)
        rows = min(MAX_SEQUENCES, max(len(moment.tables) for moment in self.moments))
        pool_rows = -(-min(self.n_blocks, MAX_PHYSICAL) // POOL_COLUMNS)
        self.height = TOP + max(rows * ROW, pool_rows * (POOL_BOX + 4)) + 66
        super().__init__(step=len(self.moments) - 1)

    @property
    def now(self) -> Moment:
        """The pool at the step looked at."""
        return self.moments[self.step]

    @property
    def problems(self) -> list[str]:
        """What went wrong up to this step."""
        return [f"event {i}: {problem}" for i, m in enumerate(self.moments[: self.step + 1]) for problem in m.problems]

    @property
    def alt(self) -> str:
        """The event, each sequence's blocks, the pool, and what went wrong so far."""
        wrong = "".join(f" WRONG at {problem}." for problem in self.problems[:3])
        return f"Block tables after {self._event()} {self._pool()}{wrong}"

    def _said(self) -> str:
        wrong = "".join(f" WRONG: {problem}." for problem in self.now.problems)
        return f"{self._event(capital=True)} {self._pool()}{wrong}"

    def _event(self, capital: bool = False) -> str:
        last = len(self.moments) - 1
        if self.step == 0:
            return f"{'Event' if capital else 'event'} 0 of {last}: {self.now.said[0].lower()}{self.now.said[1:]}"
        return f"{'Event' if capital else 'event'} {self.step} of {last}: {self.now.said}."

    def _pool(self) -> str:
        now = self.now
        tables = []
        for name, table in list(now.tables.items())[:MAX_SEQUENCES]:
            listed = ", ".join(map(str, table[:12])) + (", ..." if len(table) > 12 else "")
            blocks = f"{'block' if len(table) == 1 else 'blocks'} {listed}"
            tables.append(f"{name}: {plural(now.n_tokens[name], 'token')} in {blocks}")
        if len(now.tables) > MAX_SEQUENCES:
            tables.append(f"and {len(now.tables) - MAX_SEQUENCES} more sequences")
        used = self.n_blocks - len(now.free)
        shared = sum(count > 1 for count in now.counts)
        free = ", ".join(map(str, now.free[:12])) + (", ..." if len(now.free) > 12 else "")
        said = "; ".join(tables) + ". " if tables else ""
        return (
            f"{said}{used} of {plural(self.n_blocks, 'block')} in use, {shared} of them shared; free: {free or 'none'}."
            f" {self._filled()} of {used * self.block_size} slots in use hold a token."
        )

    def _filled(self) -> int:
        """Slots of the pool that hold a token, a shared one counted once."""
        filled: dict[int, int] = {}
        for name, table in self.now.tables.items():
            for i, block in enumerate(table):
                here = min(self.block_size, max(0, self.now.n_tokens[name] - i * self.block_size))
                filled[block] = max(filled.get(block, 0), here)
        return sum(filled.values())

    def _controls(self) -> list[dict[str, Any]]:
        return [control("step", "event", range(len(self.moments)), self.step, kind="play")]

    def _scene(self) -> Scene:
        scene = Scene()
        scene.text(MARGIN, 20, f"{self._event(capital=True)[:100]}", 13, bold=True)
        scene.text(MARGIN, TOP - 14, "block tables: logical block 0, 1, ... on physical block", 11, fill="quiet")
        scene.text(POOL_X, TOP - 14, f"pool: {plural(self.n_blocks, 'block')} of {self.block_size}", 11, fill="quiet")
        for row, name in enumerate(list(self.now.tables)[:MAX_SEQUENCES]):
            self._table(scene, name, TOP + row * ROW)
        self._pool_boxes(scene)
        self._notes(scene, self.height - 46)
        return scene

    def _table(self, scene: Scene, name: str, y: Px) -> None:
        table, n_tokens = self.now.tables[name], self.now.n_tokens[name]
        scene.text(MARGIN, y + 22, name[:8], 12, bold=True)
        slots: dict[bool, list[Box]] = {True: [], False: []}
        for i, block in enumerate(table[:MAX_LOGICAL]):
            x = 88 + i * (BOX + 5)
            shared = self.now.counts[block] > 1
            scene.rect((x, y, BOX, 36), "paper", COLORS["values"] if shared else "line", 2 if shared else 1, shared)
            scene.text(x + BOX / 2, y + 16, str(block), 13, "middle", bold=block in self.now.touched)
            for filled, box in self._slots(x + 3, y + 23, BOX - 6, n_tokens - i * self.block_size):
                slots[filled].append(box)
            if block in self.now.touched:
                scene.rect((x - 2, y - 2, BOX + 4, 40), stroke=COLORS["new"], thick=2.5)
        scene.boxes(slots[False], "empty")
        scene.boxes(slots[True], COLORS["cached"])
        if len(table) > MAX_LOGICAL:
            scene.text(88 + MAX_LOGICAL * (BOX + 5), y + 22, f"+{len(table) - MAX_LOGICAL}", 11)

    def _slots(self, x: Px, y: Px, width: Px, n_tokens: int) -> list[tuple[bool, Box]]:
        """Whether each slot of a block is filled, and where; a bar where the slots are too many to be seen."""
        filled = min(self.block_size, max(0, n_tokens))
        if self.block_size > 12:
            part = width * filled / self.block_size
            return [(True, (x, y, part, 9)), (False, (x + part, y, width - part, 9))]
        pitch = width / self.block_size
        return [(slot < filled, (x + slot * pitch, y, pitch - 1, 9)) for slot in range(self.block_size)]

    def _pool_boxes(self, scene: Scene) -> None:
        """Every physical block: free, held once, shared; its number and its count."""
        counts = self.now.counts[:MAX_PHYSICAL]
        at = [
            (POOL_X + i % POOL_COLUMNS * (POOL_BOX + 4), TOP + i // POOL_COLUMNS * (POOL_BOX + 4))
            for i in range(len(counts))
        ]
        boxes = [(x, y, POOL_BOX, POOL_BOX) for x, y in at]
        scene.boxes([box for box, n in zip(boxes, counts, strict=True) if n == 0], "none", "line", "4 3")
        scene.boxes([box for box, n in zip(boxes, counts, strict=True) if n == 1], COLORS["cached"])
        scene.boxes([box for box, n in zip(boxes, counts, strict=True) if n > 1], COLORS["values"])
        for block, ((x, y), count) in enumerate(zip(at, counts, strict=True)):
            ink = "quiet" if count == 0 else "#ffffff" if count == 1 else "#1a1a1a"
            scene.text(x + POOL_BOX / 2, y + (15 if count else 21), str(block), 12, "middle", fill=ink)
            if count:
                scene.text(x + POOL_BOX / 2, y + 29, f"x{count}", 11, "middle", fill=ink, bold=count > 1)
            if block in self.now.touched:
                scene.rect((x - 2, y - 2, POOL_BOX + 4, POOL_BOX + 4), stroke=COLORS["new"], thick=2.5)

    def _notes(self, scene: Scene, y: Px) -> None:
        """The legend, the free list, what is left out, what went wrong."""
        now = self.now
        free = ", ".join(map(str, now.free[:16])) + (", ..." if len(now.free) > 16 else "")
        left_out = []
        if self.n_blocks > MAX_PHYSICAL:
            left_out.append(f"the first {MAX_PHYSICAL} blocks")
        if len(now.tables) > MAX_SEQUENCES:
            left_out.append(f"the first {MAX_SEQUENCES} of {len(now.tables)} sequences")
        said = f" Drawn: {' and '.join(left_out)}." if left_out else ""
        scene.text(MARGIN, y + 4, f"free: {free or 'none'}.{said}", 11)
        x = MARGIN
        for colour, words in (
            ("cached", "held once, slot filled"),
            ("values", "shared, x its count"),
            ("new", "touched"),
        ):
            if colour == "new":
                scene.rect((x + 1, y + 13, 10, 10), stroke=COLORS["new"], thick=2.5)
            else:
                scene.rect((x, y + 12, 12, 12), COLORS[colour])
            scene.text(x + 18, y + 22, words, 11, fill="quiet")
            x += 34 + 6 * len(words)
        if self.problems:
            scene.rect((MARGIN, y + 29, 12, 12), COLORS["wrong"])
            scene.cross((MARGIN + 3, y + 32, 6, 6), "#ffffff", 2)
            more = f" (and {len(self.problems) - 1} more)" if len(self.problems) > 1 else ""
            scene.text(MARGIN + 18, y + 39, f"{self.problems[-1][:100]}{more}", 12, bold=True)

    @traitlets.validate("step")
    def _expect_step(self, proposal: dict[str, Any]) -> int:
        return expect_index("step", proposal["value"], len(self.moments) - 1)
