"""A trace of block events replayed: tables, reference counts and the free list after each, and what went wrong."""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from kvlab.shapes import expect_count
from kvlab.widgets.twin import plural

FIELDS = {
    "allocate": ("sequence", "block"),
    "write": ("sequence", "n_tokens"),
    "fork": ("sequence", "to"),
    "copy": ("sequence", "index", "block"),
    "share": ("sequence", "block"),
    "drop": ("sequence", "block"),
    "release": ("sequence",),
}


@dataclass
class Moment:
    """The pool after one event.

    tables: for each sequence, the physical block of each of its logical blocks.
    n_tokens: for each sequence, the tokens written.
    counts: for each physical block, how many tables hold it.
    touched: physical blocks that the event handed out, wrote or let go.
    said: the event in words.
    problems: what it did that a right pool never does, in words.
    """

    tables: dict[str, list[int]]
    n_tokens: dict[str, int]
    counts: list[int]
    touched: set[int] = field(default_factory=set)
    said: str = "Before the run: every block is free."
    problems: list[str] = field(default_factory=list)

    @property
    def free(self) -> list[int]:
        """The blocks that no table holds."""
        return [block for block, count in enumerate(self.counts) if count == 0]


def replay(events: Sequence[Mapping[str, Any]], n_blocks: int, block_size: int) -> list[Moment]:
    """The pool before the first event and after each.

    Raises:
        ValueError: an unknown event, a field that is missing or out of range, a sequence that is not there.
    """
    moments = [Moment({}, {}, [0] * n_blocks)]
    for i, event in enumerate(events):
        kind = event.get("do") if isinstance(event, Mapping) else None
        if kind not in FIELDS:
            raise ValueError(f"events[{i}]: expected a dict whose 'do' is one of {', '.join(FIELDS)}, got {event!r}")
        missing = [name for name in FIELDS[kind] if name not in event]
        if missing:
            raise ValueError(f"events[{i}]: {kind} lacks {', '.join(missing)}")
        last = moments[-1]
        now = Moment(deepcopy(last.tables), dict(last.n_tokens), list(last.counts))
        try:
            _EVENTS[kind](now, block_size, *(event[name] for name in FIELDS[kind]))
        except ValueError as error:
            raise ValueError(f"events[{i}]: {error}") from None
        moments.append(now)
    return moments


def _allocate(now: Moment, block_size: int, sequence: Any, block: Any) -> None:
    block, name = _block(now, block), str(sequence)
    if now.counts[block]:
        now.problems.append(f"block {block} is handed out while {_holders(now, block)} it")
    now.tables.setdefault(name, []).append(block)
    now.n_tokens.setdefault(name, 0)
    now.counts[block] += 1
    now.touched = {block}
    now.said = f"{name} gets block {block} as its logical block {len(now.tables[name]) - 1}"


def _write(now: Moment, block_size: int, sequence: Any, n_tokens: Any) -> None:
    name, n = _sequence(now, sequence), expect_count("n_tokens", n_tokens, 1)
    first, end = now.n_tokens[name], now.n_tokens[name] + n
    table = now.tables[name]
    if end > len(table) * block_size:
        now.problems.append(f"{plural(end, 'token')} do not fit in {plural(len(table), 'block')} of {block_size}")
    written = table[first // block_size : -(-end // block_size)]
    for block in written:
        if now.counts[block] > 1:
            now.problems.append(f"block {block} is written while {_holders(now, block)} it: copy it first")
    now.n_tokens[name] = min(end, len(table) * block_size)
    now.touched = set(written)
    now.said = f"{name} writes {plural(n, 'token')}, {now.n_tokens[name]} in all"


def _fork(now: Moment, block_size: int, sequence: Any, to: Any) -> None:
    name, new = _sequence(now, sequence), str(to)
    if new in now.tables:
        raise ValueError(f"fork: there is a sequence {new!r} already")
    now.tables[new], now.n_tokens[new] = list(now.tables[name]), now.n_tokens[name]
    for block in now.tables[new]:
        now.counts[block] += 1
    now.touched = set(now.tables[new])
    now.said = f"{new} is forked from {name}: {plural(len(now.tables[new]), 'block')} shared, none copied"


def _copy(now: Moment, block_size: int, sequence: Any, index: Any, block: Any) -> None:
    name, block, index = _sequence(now, sequence), _block(now, block), expect_count("index", index)
    table = now.tables[name]
    if index >= len(table):
        raise ValueError(f"index: {name} has logical blocks 0 to {len(table) - 1}, got {index}")
    old = table[index]
    if now.counts[block]:
        now.problems.append(f"block {block} is handed out while {_holders(now, block)} it")
    table[index] = block
    now.counts[old] -= 1
    now.counts[block] += 1
    now.touched = {old, block}
    now.said = f"{name} copies block {old} to block {block} before it writes"


def _share(now: Moment, block_size: int, sequence: Any, block: Any) -> None:
    block, name = _block(now, block), str(sequence)
    table = now.tables.setdefault(name, [])
    if now.n_tokens.setdefault(name, 0) != len(table) * block_size:
        raise ValueError(f"share: {name} has a block that is not full, only full blocks can precede a shared one")
    if not now.counts[block]:
        now.problems.append(f"block {block} is shared while nobody holds it: its contents may be any")
    table.append(block)
    now.n_tokens[name] += block_size
    now.counts[block] += 1
    now.touched = {block}
    now.said = f"{name} shares block {block} as its logical block {len(table) - 1}"


def _drop(now: Moment, block_size: int, sequence: Any, block: Any) -> None:
    name, block = _sequence(now, sequence), _block(now, block)
    if block not in now.tables[name]:
        raise ValueError(f"drop: {name} holds no block {block}")
    now.tables[name].remove(block)
    now.n_tokens[name] -= block_size
    now.counts[block] -= 1
    now.touched = {block}
    now.said = f"{name} lets go of block {block}"


def _release(now: Moment, block_size: int, sequence: Any) -> None:
    name = _sequence(now, sequence)
    freed = 0
    for block in now.tables[name]:
        now.counts[block] -= 1
        freed += now.counts[block] == 0
    now.touched = set(now.tables.pop(name))
    del now.n_tokens[name]
    kept = len(now.touched) - freed
    now.said = f"{name} ends: {plural(freed, 'block')} back in the pool" + (f", {kept} still shared" if kept else "")


_EVENTS: dict[str, Callable[..., None]] = {
    "allocate": _allocate,
    "write": _write,
    "fork": _fork,
    "copy": _copy,
    "share": _share,
    "drop": _drop,
    "release": _release,
}


def _sequence(now: Moment, name: Any) -> str:
    if str(name) not in now.tables:
        raise ValueError(f"sequence: there is no {name!r}, there are: {', '.join(now.tables) or 'none'}")
    return str(name)


def _block(now: Moment, block: Any) -> int:
    number = expect_count("block", block)
    if number >= len(now.counts):
        raise ValueError(f"block: the pool has blocks 0 to {len(now.counts) - 1}, got {number}")
    return number


def _holders(now: Moment, block: int) -> str:
    """a and b hold"""
    names = [name for name, table in now.tables.items() if block in table]
    return f"{' and '.join(names)} {'holds' if len(names) == 1 else 'hold'}"
