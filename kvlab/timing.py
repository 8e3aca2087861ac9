"""Timing that can be trusted: warm up, synchronize before every reading of the clock, keep the median, watch the load.

torch is imported only where a device or a kernel of its own is asked for.
"""

import os
import platform
import re
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kvlab.shapes import expect_count

Step = Callable[[], object]
Clock = Callable[[], float]

BUSY_SHARE = 0.10  # of the processors, taken by other programs, from which on a timing counts as contended
READ_SPREAD = 1.5  # median over minimum of the same read, from which on it does too


def time_decode(step: Step, n_warmup: int, n_steps: int, synchronize: Step, clock: Clock) -> float:
    """Median time of a decode step in milliseconds.

    Args:
        step: one decode step; on a GPU it returns when the work is queued, not when it is done.
        n_warmup: steps that run first and are not counted.
        n_steps: steps that are timed, each by itself.
        synchronize: returns when the device has finished; called before every reading of the clock.
        clock: seconds, such as time.perf_counter.

    Returns:
        Milliseconds; the mean of the middle two for an even number of steps.

    Raises:
        ValueError: a negative n_warmup, an n_steps below 1.

    >>> ticks = iter([0.0, 0.004, 1.0, 1.002, 2.0, 2.009])
    >>> time_decode(lambda: None, 1, 3, synchronize=lambda: None, clock=lambda: next(ticks))
    4.0
    """
    expect_count("n_warmup", n_warmup)
    expect_count("n_steps", n_steps, 1)
    for _ in range(n_warmup):
        step()
    times_s = []
    for _ in range(n_steps):
        synchronize()
        start = clock()
        step()
        synchronize()
        times_s.append(clock() - start)
    return 1000 * statistics.median(times_s)


def interleave(
    steps: Mapping[str, Step],
    n_rounds: int,
    synchronize: Step,
    clock: Clock = time.perf_counter,
    n_warmup: int = 1,
    n_each: Mapping[str, int] | None = None,
    limit_s: int | float = float("inf"),
) -> dict[str, list[float]]:
    """Time several steps in turn, A B A B, so that a disturbance of seconds falls on all of them.

    Args:
        steps: by name.
        n_rounds: times that each has its turn.
        synchronize, clock: as for `time_decode`.
        n_warmup: calls of each before the first round, not counted.
        n_each: timed calls in one turn, by name; 1 for those left out.
        limit_s: no further round begins once this many seconds have been timed; the first always runs.

    Returns:
        The times of each step in seconds, by name; `summary` makes figures of them.

    >>> ticks = iter([0.0, 1.0, 1.0, 4.0, 4.0, 6.0, 6.0, 9.0])
    >>> interleave({"a": lambda: None, "b": lambda: None}, 2, lambda: None, lambda: next(ticks))
    {'a': [1.0, 2.0], 'b': [3.0, 3.0]}
    """
    expect_count("n_rounds", n_rounds, 1)
    for step in steps.values():
        for _ in range(n_warmup):
            step()
    times_s: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(n_rounds):
        for name, step in steps.items():
            for _ in range((n_each or {}).get(name, 1)):
                synchronize()
                start = clock()
                step()
                synchronize()
                times_s[name].append(clock() - start)
        if sum(map(sum, times_s.values())) > limit_s:
            break
    return times_s


def summary(times_s: list[float]) -> dict[str, float]:
    """Minimum and median in milliseconds, and how many they are of. The minimum is what a quiet machine would show.

    >>> summary([0.002, 0.001, 0.050])
    {'ms_min': 1.0, 'ms_median': 2.0, 'n_steps': 3}
    """
    return {"ms_min": 1000 * min(times_s), "ms_median": 1000 * statistics.median(times_s), "n_steps": len(times_s)}


# The device


def pick_device() -> str:
    """ "cuda" where torch sees such a device, else "cpu"."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def synchronizer(device: str) -> Step:
    """A function that returns when `device` has finished all it was given; on the CPU there is nothing to wait for.

    Raises:
        ValueError: a device other than cpu and cuda, or no CUDA device here.

    >>> synchronizer("cpu")()
    """
    if device == "cpu":
        return lambda: None
    if device != "cuda":
        raise ValueError(f"device: expected cpu or cuda, got {device!r}")
    import torch

    if not torch.cuda.is_available():
        raise ValueError(f"device: torch {torch.__version__} sees no CUDA device here, use cpu")
    return torch.cuda.synchronize


def device_facts(device: str) -> dict[str, Any]:
    """What a timing depends on: processor, cores, threads, the matrix kernels that run, the GPU when it is timed.

    Raises:
        ValueError: as `synchronizer`.
    """
    synchronizer(device)
    import torch

    from kvlab.environment import look

    seen = look()
    return {
        "name": seen.gpu if device == "cuda" else seen.cpu,
        "cpu": seen.cpu,
        "n_cpus": seen.n_cpus,
        "torch_threads": torch.get_num_threads(),
        "torch_cpu_kernels": torch.backends.cpu.get_cpu_capability(),
        "numpy_blas": seen.blas,
        "last_level_cache_bytes": last_level_cache_bytes(),
        "memory_bytes": seen.memory_bytes,
        "gpu_memory_bytes": torch.cuda.get_device_properties(0).total_memory if device == "cuda" else None,
    }


def versions() -> dict[str, str]:
    """Of Python, NumPy, torch, and the CUDA that torch was built for ("none" for a CPU build)."""
    import torch

    return {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "torch": torch.__version__,
        "cuda": torch.version.cuda or "none",
    }


def last_level_cache_bytes() -> int | None:
    """The biggest cache of processor 0, where Linux tells; else None."""
    sizes = [path.read_text().strip() for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    found = [re.fullmatch(r"(\d+)([KM])", size) for size in sizes]
    return max((int(m[1]) * {"K": 2**10, "M": 2**20}[m[2]] for m in found if m), default=None)


# What the device can do at best


def read_bandwidth(device: str, n_bytes: int | None = None, n_repeats: int = 5) -> dict[str, list[float]]:
    """Bytes a second that simple kernels read (on a GPU: copy) from memory; the largest value is the ceiling.

    On the CPU, reductions and a matrix-vector product stream over one array several times the size of the last-level
    cache. On a GPU one tensor is copied into another, and 2 x bytes / time counts the read and the write.

    Args:
        device: cpu or cuda.
        n_bytes: of the array; None takes 8 times the last-level cache, at least 256 MiB (CPU), or 4 GiB (GPU).
        n_repeats: timed passes of each kernel, after one that is not counted.

    Returns:
        By kernel, bytes a second of every pass.
    """
    synchronize = synchronizer(device)
    if device == "cuda":
        n_bytes = n_bytes or 2**32
        kernels, counted_bytes = _copy_kernels(n_bytes), 2 * n_bytes
    else:
        n_bytes = n_bytes or max(2**28, 8 * (last_level_cache_bytes() or 0))
        kernels, counted_bytes = _read_kernels(n_bytes), n_bytes
    times_s = interleave(kernels, n_repeats, synchronize)
    return {name: [counted_bytes / t for t in times] for name, times in times_s.items()}


def _read_kernels(n_bytes: int) -> dict[str, Step]:
    import torch

    # Ones, not zeros: untouched zero pages may all be one page of physical memory, and then nothing is streamed.
    matrix = np.ones((max(1, n_bytes // (4 * 4096)), 4096), np.float32)
    vector = np.ones(4096, np.float32)
    tensor = torch.from_numpy(matrix)
    return {
        "numpy matrix @ vector": lambda: matrix @ vector,
        "numpy max": matrix.max,
        "torch sum": tensor.sum,
        "torch max": tensor.max,
    }


def _copy_kernels(n_bytes: int) -> dict[str, Step]:
    import torch

    source = torch.ones(n_bytes, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return {"copy": lambda: target.copy_(source)}


def matmul_flops_per_s(device: str, dtype: str, size: int = 1024, n_repeats: int = 5) -> float:
    """FLOP/s of torch's best product of two (size, size) matrices of `dtype`: the ceiling for compute-bound work."""
    import torch

    a = torch.ones(size, size, dtype=getattr(torch, dtype), device=device)
    times_s = interleave({"matmul": lambda: a @ a}, n_repeats, synchronizer(device))["matmul"]
    return 2 * size**3 / min(times_s)


# Who else is at work


class LoadWatch:
    """How much of the processors other programs took while a block ran.

    >>> with LoadWatch() as load:
    ...     _ = sum(range(1000))
    >>> load.others_share is None or 0 <= load.others_share <= 1
    True

    others_share: their part of all processor time, 0 to 1; None where the system does not tell (no /proc/stat).
    """

    others_share: float | None = None

    def __enter__(self) -> "LoadWatch":
        self._before = _processor_seconds()
        return self

    def __exit__(self, *_: object) -> None:
        after = _processor_seconds()
        if self._before is None or after is None:
            return
        total, busy, own = (b - a for a, b in zip(self._before, after, strict=True))
        self.others_share = min(1.0, max(0.0, busy - own) / total) if total > 0 else 0.0


def _processor_seconds() -> tuple[float, float, float] | None:
    """(all, busy, this process's) processor seconds since some fixed time; None where Linux's counters are missing."""
    try:
        with open("/proc/stat") as counters:
            user, nice, system, idle, iowait, irq, softirq, steal = map(int, counters.readline().split()[1:9])
    except (OSError, ValueError):
        return None
    # Steal is time that the hypervisor gave to another guest: as disturbing as a neighbour here.
    busy = user + nice + system + irq + softirq + steal
    tick = os.sysconf("SC_CLK_TCK")
    return (busy + idle + iowait) / tick, busy / tick, sum(os.times()[:4])


def is_contended(others_share: float | None, reads_bytes_per_s: list[float]) -> bool:
    """Whether a timing was disturbed: other programs took processors, or one same read took different times.

    >>> is_contended(0.01, [30e9, 31e9, 30e9]), is_contended(0.4, [30e9, 31e9]), is_contended(None, [30e9, 12e9, 11e9])
    (False, True, True)
    """
    spread = max(reads_bytes_per_s) / statistics.median(reads_bytes_per_s)
    return (others_share or 0.0) > BUSY_SHARE or spread > READ_SPREAD
