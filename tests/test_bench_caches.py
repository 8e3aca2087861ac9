"""What an append touches is counted, not timed; and the benchmark of the caches measures and says what it claims."""

import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kvlab import caches, torch_caches
from kvlab.bench import caches as bench_caches
from kvlab.bench import load, main
from kvlab.bench.benchmarks import setting
from kvlab.bench.caches import LONG, SHORT, flat_ratios, kinds, measure, table

HEADS, HEAD_DIM, BLOCK_SIZE = 2, 4, 16
ROW_BYTES = HEADS * HEAD_DIM * 4  # keys alone
QUICK = setting("cpu", quick=True)


# Bytes touched


class Touched(TorchDispatchMode):
    """Operations that move numbers, and the bytes of all tensors they read or write; views move none."""

    def __init__(self) -> None:
        super().__init__()
        self.n_operations = self.n_bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if not func.is_view:
            self.n_operations += 1
            in_place = isinstance(out, torch.Tensor) and any(out is x for x in args)
            self.n_bytes += _tensor_bytes(args) + (0 if in_place else _tensor_bytes([out]))
        return out


def _tensor_bytes(values: Any) -> int:
    if isinstance(values, torch.Tensor):
        return values.nbytes
    return sum(map(_tensor_bytes, values)) if isinstance(values, list | tuple) else 0


def torch_cache(kind: str, n: int) -> Any:
    """A cache with n tokens in it and room for 64 more."""
    if kind == "static":
        cache = torch_caches.StaticCache(1, HEADS, n + 64, HEAD_DIM)
    elif kind == "paged":
        cache = torch_caches.PagedCache(torch_caches.BlockPool(n // BLOCK_SIZE + 4, BLOCK_SIZE, HEADS, HEAD_DIM))
    else:
        cache = torch_caches.ConcatCache(1, HEADS, HEAD_DIM)
    cache.update(torch.ones(1, HEADS, n, HEAD_DIM), torch.ones(1, HEADS, n, HEAD_DIM))
    return cache


def touched(kind: str, n: int, n_appends: int) -> tuple[int, int]:
    cache, one = torch_cache(kind, n), torch.ones(1, HEADS, 1, HEAD_DIM)
    with Touched() as meter:
        for _ in range(n_appends):
            cache.update(one, one)
    return meter.n_operations, meter.n_bytes


@pytest.mark.parametrize("kind", ["static", "paged"])
@pytest.mark.parametrize("n_appends", [1, 33])
def test_an_append_to_a_torch_cache_touches_the_new_row_alone(kind: str, n_appends: int) -> None:
    short, long = touched(kind, SHORT, n_appends), touched(kind, LONG, n_appends)
    assert short == long == (2 * n_appends, 2 * 2 * ROW_BYTES * n_appends)  # keys and values, read and written


def test_the_meter_sees_concatenation_copy_everything() -> None:
    (_, short), (_, long) = touched("concat", SHORT, 1), touched("concat", LONG, 1)
    assert short == 2 * ROW_BYTES * 2 * (SHORT + 1)
    assert long == 2 * ROW_BYTES * 2 * (LONG + 1)


class Written(np.ndarray):
    """An array that counts the numbers assigned to it and to its views."""

    n_numbers = 0

    def __setitem__(self, key, value):
        Written.n_numbers += np.asarray(self)[key].size
        super().__setitem__(key, value)


def numpy_append(kind: str, n: int) -> tuple[int, int]:
    """(numbers written to storage, bytes allocated at most) by 15 appends of one token to a cache of n."""
    rows, one = np.ones((HEADS, n, HEAD_DIM), np.float32), np.ones((HEADS, 1, HEAD_DIM), np.float32)
    if kind == "static":
        cache: Any = caches.StaticCache(HEADS, n + 64, HEAD_DIM, np.float32)
        cache._k, cache._v = cache._k.view(Written), cache._v.view(Written)
    elif kind == "paged":
        pool = caches.BlockPool(n // BLOCK_SIZE + 4, BLOCK_SIZE, HEADS, HEAD_DIM, np.float32)
        pool.k, pool.v = pool.k.view(Written), pool.v.view(Written)
        cache = caches.PagedCache(pool)
    else:
        cache = caches.ConcatCache(HEADS, HEAD_DIM)
    cache.append(rows, rows)
    cache.append(one, one)  # takes a block; the 15 after it fit
    Written.n_numbers = 0
    tracemalloc.start()
    for _ in range(BLOCK_SIZE - 1):
        cache.append(one, one)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return Written.n_numbers, peak


@pytest.mark.parametrize("kind", ["static", "paged"])
@pytest.mark.usefixtures("no_shape_hook")
def test_an_append_to_a_numpy_cache_touches_the_new_row_alone(kind: str) -> None:
    (written_short, peak_short), (written_long, peak_long) = numpy_append(kind, SHORT), numpy_append(kind, LONG)
    assert written_short == written_long == 2 * HEADS * HEAD_DIM * (BLOCK_SIZE - 1)
    assert max(peak_short, peak_long) < SHORT * ROW_BYTES / 4  # a copy of the shorter cache's keys is four times this


def test_the_numpy_meter_sees_concatenation_allocate_everything() -> None:
    assert numpy_append("concat", LONG)[1] > 2 * LONG * ROW_BYTES


# The benchmark


@pytest.fixture(scope="module")
def quick_rows() -> list[dict[str, Any]]:
    return measure(QUICK)[0]


def test_every_cache_of_both_sides_is_measured(quick_rows: list[dict[str, Any]]) -> None:
    names = [f"{side} {kind}" for side in ("torch", "numpy") for kind in caches_by_name()]
    seen = {(row["variant"], row["context"]) for row in quick_rows}
    wanted = {(f"{name} {operation}", n) for name in names for operation in ("append", "gather") for n in (16, 32)}
    wanted |= {(f"{s} {k} grow", n) for s in ("torch", "numpy") for k in bench_caches.GROWN for n in (16, 32)}
    assert seen == wanted


def caches_by_name() -> list[str]:
    """Every class of both packages that is a cache, so that a new one cannot be left out of the benchmark."""
    protocols = ("Cache", "TorchCache")
    found = [{n for n in vars(m) if n.endswith("Cache") and n not in protocols} for m in (caches, torch_caches)]
    assert found[0] == found[1]
    return sorted(name.removesuffix("Cache").lower() for name in found[0])


def test_bytes_are_those_of_the_rows(quick_rows: list[dict[str, Any]]) -> None:
    row = 2 * QUICK.shape.n_kv_heads * QUICK.shape.head_dim * 4  # keys and values
    of = {(r["variant"], r["context"]): r for r in quick_rows}
    for side in ("torch", "numpy"):
        for n in (16, 32):
            assert of[f"{side} static append", n]["bytes"] == row
            exact = [of[f"{side} {kind} gather", n] for kind in ("concat", "static", "paged")]
            assert {(r["bytes"], r["kv_bytes"]) for r in exact} == {(n * row, n * row)}
            assert of[f"{side} quantized gather", n]["bytes"] == n * row
            assert of[f"{side} paged grow", n]["bytes"] == 2 * n * row
            assert of[f"{side} concat grow", n]["bytes"] == 2 * row * sum(range(n + 1))
        assert of[f"{side} ring gather", 32]["kv_bytes"] == bench_caches.WINDOW * row
        assert of[f"{side} quantized gather", 32]["kv_bytes"] < 32 * row / 2


def test_what_takes_too_long_is_counted_and_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_caches, "MAX_GROWN_BYTES", 100_000)
    rows, skipped = measure(QUICK)
    assert {left["why"] for left in skipped} == {
        f"{side} concat grown token by token copies 0 GB" for side in ("torch", "numpy")
    }
    assert not any(row["variant"].endswith("concat grow") and row["context"] == 32 for row in rows)


def test_threads_are_as_they_were(quick_rows: list[dict[str, Any]]) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    measure(QUICK)
    assert torch.get_num_threads() == 2
    torch.set_num_threads(before)


def row_of(variant: str, context: int, ms_min: float, ms_median: float) -> dict[str, Any]:
    work = {"n_steps": 3, "bytes": 8, "kv_bytes": 2**20, "flops": 0}
    return {"variant": variant, "context": context, "ms_min": ms_min, "ms_median": ms_median, **work}


def test_the_ratio_is_of_the_longest_over_a_thousand() -> None:
    rows = [row_of("torch paged append", n, n / 1024, n / 512) for n in (512, SHORT, LONG)]
    rows += [row_of("torch static append", n, 1.0, 1.0) for n in (SHORT, LONG)]
    rows += [row_of("torch concat append", n, 1.0, 1.0) for n in (SHORT, LONG)]
    rows += [row_of("numpy paged append", LONG, 1.0, 1.0)]
    assert flat_ratios(rows) == {"torch paged": (32.0, 32.0), "torch static": (1.0, 1.0)}
    grows, flat = table(rows)[-2:]
    assert grows.endswith("32.00 x (medians): GROWS: expected under 1.5") and flat.endswith("1.00 x (medians): flat")


def test_tables_are_aligned_and_whole(quick_rows: list[dict[str, Any]]) -> None:
    lines = table(quick_rows)
    assert len({len(line) for line in lines}) == 1
    assert sum("torch" in line or "numpy" in line for line in lines) == 3 * 12 + 6
    counted = [line.split()[-2:] for line in lines if "counted" in line]
    row_mb = 2 * QUICK.shape.n_kv_heads * QUICK.shape.head_dim * 4 / 1e6
    assert counted[0] == [f"{2 * row_mb * sum(range(n + 1)):,.1f}" for n in (16, 32)]
    assert counted[1] == counted[2] == [f"{2 * row_mb * n:,.1f}" for n in (16, 32)]
    assert all(title in "\n".join(lines) for title in ("append, microseconds", "held, MiB", "grown from nothing"))


def test_a_gpu_is_given_the_torch_caches_alone() -> None:
    assert {kind.side for kind in kinds(QUICK)} == {"torch", "numpy"}
    assert {kind.side for kind in kinds(replace(QUICK, device="cuda"))} == {"torch"}


def test_the_command_writes_and_shows_it(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["caches", "--quick", "--device", "cpu", "--out", str(tmp_path)]) == 0
    assert "held, MiB" in capsys.readouterr().out
    assert load("caches", "cpu", tmp_path)["rows"]


def test_the_committed_result_keeps_what_is_claimed() -> None:
    """Times are of the machine that measured; that both ratios stay under the limit is the claim."""
    ratios = flat_ratios(load("caches", "cpu")["rows"])
    assert set(ratios) == {f"{side} {kind}" for side in ("torch", "numpy") for kind in bench_caches.FLAT}
    assert all(least < bench_caches.MAX_RATIO for least, _ in ratios.values())
