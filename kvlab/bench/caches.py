"""Every cache of the course, NumPy and PyTorch: appending one token, gathering all rows, bytes held, by length.

All lengths of one cache are timed in turn, so that a disturbance falls on the short ones and the long ones alike: what
is claimed is a ratio, an append at 32,768 tokens against one at 1,024.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from kvlab import caches, torch_caches
from kvlab.bench.benchmarks import Rows, Setting
from kvlab.timing import interleave, summary, synchronizer

LENGTHS = (128, 512, 1024, 2048, 8192, 32768)
SHORT, LONG = 1024, 32768  # of the ratio that must stay under MAX_RATIO
MAX_RATIO = 1.5
FLAT = ("static", "paged")  # kinds whose append must cost the same at any length
GROWN = ("concat", "static", "paged")
MAX_GROWN_BYTES = 2**35  # copied while a cache grows; what takes more is counted and not run

WINDOW, N_SINKS, BLOCK_SIZE, N_BITS, RESIDUAL = 128, 4, 16, 4, 32
N_EACH = 8  # appends in one timed step: one alone is as short as reading the clock
N_ROUNDS = 20
LIMIT_S = 3.0  # of all rounds of one cache


@dataclass(frozen=True)
class Kind:
    """A cache as the benchmark sees it.

    make(n): an empty one with room for n tokens; rows(n): n tokens' keys or values, in its own layout.
    """

    side: str
    name: str
    make: Callable[[int], Any]
    rows: Callable[[int], Any]

    def append(self, cache: Any, rows: Any) -> Any:
        return cache.append(rows, rows) if self.side == "numpy" else cache.update(rows, rows)

    def gather(self, cache: Any, nothing: Any) -> Any:
        """All rows that attention would read next, with nothing stored."""
        answer = self.append(cache, nothing)
        return cache.gather() if answer is None else answer


def kinds(s: Setting) -> list[Kind]:
    """The caches to measure on this device; NumPy has only the CPU."""
    h, d = s.shape.n_kv_heads, s.shape.head_dim
    dtype = getattr(torch, s.dtype)
    module: Any = torch_caches
    where = {"dtype": dtype, "device": s.device}

    def torch_rows(n: int) -> torch.Tensor:
        return torch.linspace(-1, 1, h * n * d, dtype=torch.float32, device=s.device).to(dtype).view(1, h, n, d)

    def numpy_rows(n: int) -> np.ndarray:
        return np.linspace(-1, 1, h * n * d, dtype=np.float32).reshape(h, n, d)

    def paged(n: int) -> Any:
        return module.PagedCache(module.BlockPool(-(-n // BLOCK_SIZE), BLOCK_SIZE, h, d, **where))

    def numpy_paged(n: int) -> Any:
        return caches.PagedCache(caches.BlockPool(-(-n // BLOCK_SIZE), BLOCK_SIZE, h, d, np.float32))

    found = {
        "concat": lambda n: module.ConcatCache(1, h, d),
        "static": lambda n: module.StaticCache(1, h, n, d, **where),
        "paged": paged,
        "ring": lambda n: module.RingCache(1, h, d, WINDOW, **where),
        "sink": lambda n: module.SinkCache(1, h, d, N_SINKS, WINDOW, **where),
        "quantized": lambda n: module.QuantizedCache(1, h, d, N_BITS, RESIDUAL),
    }
    sides = [Kind("torch", name, make, torch_rows) for name, make in found.items()]
    if s.device == "cpu":
        found = {
            "concat": lambda n: caches.ConcatCache(h, d),
            "static": lambda n: caches.StaticCache(h, n, d, np.float32),
            "paged": numpy_paged,
            "ring": lambda n: caches.RingCache(h, d, WINDOW),
            "sink": lambda n: caches.SinkCache(h, d, N_SINKS, WINDOW),
            "quantized": lambda n: caches.QuantizedCache(h, d, N_BITS, RESIDUAL),
        }
        sides += [Kind("numpy", name, make, numpy_rows) for name, make in found.items()]
    return sides


def measure(s: Setting) -> tuple[Rows, Rows]:
    """Rows of TIMED_ROW's form. `variant` is "torch paged append"; `context` the tokens seen when timing begins.

    bytes: of an append, the new keys and values; of a gather, the rows handed out; of growing token by token from
    nothing, all that is read and written. kv_bytes: held by the cache.
    """
    lengths = (16, 32) if s.shape_name == "tiny" else LENGTHS
    rows: Rows = []
    skipped: Rows = []
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as many as NumPy copies with, and no waiting for a second core that is busy
    try:
        for kind in kinds(s):
            rows += _appends_and_gathers(s, kind, lengths)
            if kind.name in GROWN:
                grown, left_out = _growth(s, kind, lengths)
                rows, skipped = rows + grown, skipped + left_out
    finally:
        torch.set_num_threads(n_threads)
    return rows, skipped


def _appends_and_gathers(s: Setting, kind: Kind, lengths: Sequence[int]) -> Rows:
    one, nothing = kind.rows(1), kind.rows(0)
    n_rounds = N_ROUNDS if s.n_rounds > 1 else 1
    run = partial(interleave, n_rounds=n_rounds, synchronize=synchronizer(s.device), limit_s=LIMIT_S)
    filled = {n: _filled(kind, n, room=0) for n in lengths}
    held = {n: cache.n_bytes for n, cache in filled.items()}
    handed_out = {n: sum(x.nbytes for x in kind.gather(cache, nothing)[:2]) for n, cache in filled.items()}
    gathers = run({str(n): partial(kind.gather, cache, nothing) for n, cache in filled.items()})
    filled = {n: _filled(kind, n, room=(n_rounds + 1) * N_EACH) for n in lengths}
    appends = run({str(n): partial(_append_each, kind, cache, one) for n, cache in filled.items()})
    rows = [
        _row(s, kind, "append", int(n), [t / N_EACH for t in x], 2 * one.nbytes, held[int(n)])
        for n, x in appends.items()
    ]
    rows += [_row(s, kind, "gather", int(n), x, handed_out[int(n)], held[int(n)]) for n, x in gathers.items()]
    return rows


def _filled(kind: Kind, n: int, room: int) -> Any:
    cache = kind.make(n + room)
    kind.append(cache, kind.rows(n))
    return cache


def _append_each(kind: Kind, cache: Any, one: Any) -> None:
    for _ in range(N_EACH):
        kind.append(cache, one)


def _growth(s: Setting, kind: Kind, lengths: Sequence[int]) -> tuple[Rows, Rows]:
    """A cache that grows from nothing to n tokens, one at a time, as far as its copying can be waited for."""
    one = kind.rows(1)
    rows, skipped = [], []
    for n in lengths:
        n_bytes = grown_bytes(kind.name, n, 2 * one.nbytes)
        if n_bytes > MAX_GROWN_BYTES:
            why = f"{kind.side} {kind.name} grown token by token copies {n_bytes / 1e9:,.0f} GB"
            skipped.append({"context": n, "batch": 1, "why": why})
            continue
        made: list[Any] = []
        step = partial(_grow, kind, n, one, made)
        times_s = interleave({"grow": step}, 1 if n > SHORT else 3, synchronizer(s.device), n_warmup=0)["grow"]
        rows.append(_row(s, kind, "grow", n, times_s, n_bytes, made[-1].n_bytes))
    return rows, skipped


def grown_bytes(kind: str, n: int, row_bytes: int) -> int:
    """Bytes read and written while a cache grows from nothing to n tokens, one at a time.

    Concatenation moves every row stored so far at each token, n (n + 1) / 2 in all; a slot or a block takes the new row
    alone.

    >>> grown_bytes("concat", 1000, 1) // grown_bytes("paged", 1000, 1)
    500
    """
    return 2 * row_bytes * (n * (n + 1) // 2 if kind == "concat" else n)


def _grow(kind: Kind, n: int, one: Any, made: list[Any]) -> None:
    made[:] = [kind.make(n)]
    for _ in range(n):
        kind.append(made[0], one)


def _row(
    s: Setting, kind: Kind, operation: str, n: int, times_s: list[float], moved_bytes: int, held_bytes: int
) -> dict[str, Any]:
    dtype = s.dtype if kind.side == "torch" else "float32"
    work = {"bytes": moved_bytes, "kv_bytes": held_bytes, "flops": 0}
    variant = f"{kind.side} {kind.name} {operation}"
    return {"variant": variant, "dtype": dtype, "batch": 1, "context": n, **summary(times_s), **work}


def flat_ratios(rows: Rows) -> dict[str, tuple[float, float]]:
    """By "side kind": (minimum, median) of an append at LONG tokens over one at SHORT, where both were measured."""
    found = {(row["variant"], row["context"]): row for row in rows}
    ratios = {}
    for row in rows:
        side, kind, operation = row["variant"].split()
        if operation != "append" or row["context"] != LONG or kind not in FLAT or (row["variant"], SHORT) not in found:
            continue
        short = found[row["variant"], SHORT]
        ratios[f"{side} {kind}"] = (row["ms_min"] / short["ms_min"], row["ms_median"] / short["ms_median"])
    return ratios


def table(rows: Rows) -> list[str]:
    """The rows as tables for the terminal: a line a cache, a column a length; then the ratios."""
    lengths = sorted({row["context"] for row in rows})
    found = {(row["variant"], row["context"]): row for row in rows}
    titles = {
        "append": ("append, microseconds a token (minimum)", lambda row: f"{1000 * row['ms_min']:.1f}"),
        "gather": ("gather, microseconds (minimum)", lambda row: f"{1000 * row['ms_min']:.1f}"),
        "held": ("held, MiB", lambda row: f"{row['kv_bytes'] / 2**20:.2f}"),
        "grow": ("grown from nothing token by token, ms", lambda row: f"{row['ms_min']:,.1f}"),
    }
    lines = []
    for operation, (title, shown) in titles.items():
        of = "gather" if operation == "held" else operation
        lines.append(_line(title, [f"{n:,}" for n in lengths]))
        for name in dict.fromkeys(row["variant"] for row in rows if row["variant"].endswith(of)):
            cells = [shown(found[name, n]) if (name, n) in found else "-" for n in lengths]
            lines.append(_line("  " + name.rsplit(" ", 1)[0], cells))
    one_row = {row["variant"].split()[1]: row["bytes"] for row in rows if row["variant"].endswith("append")}
    lines.append(_line("read and written while growing, MB", [f"{n:,}" for n in lengths]))
    for kind in GROWN:
        if kind in one_row:
            moved = [grown_bytes(kind, n, one_row[kind]) / 1e6 for n in lengths]
            lines.append(_line(f"  {kind}, counted", [f"{x:,.1f}" for x in moved]))
    for name, (least, median) in flat_ratios(rows).items():
        verdict = "flat" if least < MAX_RATIO else f"GROWS: expected under {MAX_RATIO}"
        lines.append(
            f"  {name}: an append at {LONG:,} tokens costs {least:.2f} x one at {SHORT:,} (minima), "
            f"{median:.2f} x (medians): {verdict}"
        )
    return lines


def _line(title: str, cells: list[str]) -> str:
    return f"  {title:<40}" + "".join(f"{cell:>13}" for cell in cells)
