"""The files in `results/`: one a benchmark and device, read and written here and nowhere else."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

# Beside the package in the repository, which the Makefile installs in place.
RESULTS = Path(__file__).resolve().parents[2] / "results"

HEADER: dict[str, tuple[type, ...]] = {
    "benchmark": (str,),
    "device": (str,),
    "date": (str,),
    "command": (str,),
    "quick": (bool,),
    "machine": (dict,),
    "versions": (dict,),
    "model": (dict,),
    "read_bandwidth_bytes_per_s": (int, float),
    "peak_flops_per_s": (int, float),
    "contended": (bool,),
    "others_share": (int, float, type(None)),
    "rows": (list,),
    "skipped": (list,),
}
TIMED_ROW: dict[str, tuple[type, ...]] = {
    "variant": (str,),
    "dtype": (str,),
    "batch": (int,),
    "context": (int,),
    "ms_min": (int, float),
    "ms_median": (int, float),
    "n_steps": (int,),
    "bytes": (int, float),
    "kv_bytes": (int, float),
    "flops": (int, float),
}
CEILING_ROW: dict[str, tuple[type, ...]] = {
    "variant": (str,),
    "kernel": (str,),
    "dtype": (str,),
    "per_s": (int, float),
}
DECODE_ROW: dict[str, tuple[type, ...]] = {
    "decoder": (str,),
    "dtype": (str,),
    "batch": (int,),
    "context": (int,),
    "ms_min": (int, float),
    "ms_median": (int, float),
    "n_steps": (int,),
    "bytes_per_token": (int, float),
    "kv_bytes": (int, float),
    "floor_ms": (int, float),
    "ratio_to_floor": (int, float),
}
ROWS = {"ceilings": CEILING_ROW, "context": TIMED_ROW, "batch": TIMED_ROW, "append": TIMED_ROW, "dtype": TIMED_ROW}
LESSON_07 = tuple(ROWS)  # what the lesson reads; the other benchmarks' rows stand beside it
ROWS |= {"caches": TIMED_ROW, "decode": DECODE_ROW}
# What a decode result has in place of the one peak: its formats have several, and none bounds a single sequence.
DECODE_HEADER = {key: types for key, types in HEADER.items() if key != "peak_flops_per_s"} | {
    "read_kernel": (str,),
    "slopes": (list,),
    "tokens": (list,),
}

# What follows from a timed row. The minimum is used: it is what a quiet machine would show.
DERIVED: dict[str, Callable[[dict[str, Any]], float]] = {
    "gb_per_s": lambda row: row["bytes"] / row["ms_min"] / 1e6,
    "gflop_per_s": lambda row: row["flops"] / row["ms_min"] / 1e6,
    "flops_per_byte": lambda row: row["flops"] / row["bytes"],
    "tokens_per_s": lambda row: 1000 * row["batch"] / row["ms_min"],
}


class ResultsError(ValueError):
    """A results file that is missing or not what it should be. In a notebook it shows as its one line."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


def path_of(name: str, device: str, folder: Path = RESULTS) -> Path:
    """Where the results of a benchmark on a device are kept."""
    return folder / f"{name}_{device}.json"


def load(name: str, device: str = "cpu", folder: Path = RESULTS) -> dict[str, Any]:
    """Read one results file.

    Args:
        name: of the benchmark: ceilings, context, batch, append, dtype, caches, decode.
        device: cpu or cuda.
        folder: where the files are.

    Returns:
        A dict of the keys of HEADER; its "rows" are dicts of the keys of TIMED_ROW (ceilings: CEILING_ROW, decode:
        DECODE_ROW and DECODE_HEADER).

    Raises:
        ResultsError: in one line: no such file, or not a whole and valid one, and how to make it again.
    """
    if name not in ROWS:
        raise ResultsError(f"results: no benchmark is called {name!r}, there are: {', '.join(ROWS)}")
    path = path_of(name, device, folder)
    again = f"run `make bench` (a few minutes, {'on a GPU machine' if device == 'cuda' else 'on a quiet machine'})"
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ResultsError(f"results/{path.name} is missing: {again}") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ResultsError(f"results/{path.name} cannot be read ({_one_line(error)}): {again}") from None
    fault = fault_of(result, name, device)
    if fault:
        raise ResultsError(f"results/{path.name} is not a results file of this version ({fault}): {again}")
    return result


def measured_devices(folder: Path = RESULTS) -> list[str]:
    """The devices of which every benchmark that lesson 07 reads has a results file, the GPU first."""
    return [device for device in ("cuda", "cpu") if all(path_of(name, device, folder).exists() for name in LESSON_07)]


def rows_of(result: dict[str, Any], variant: str) -> list[dict[str, Any]]:
    """The rows of one variant, in the order they were measured.

    Raises:
        ResultsError: the file has none.
    """
    found = [row for row in result["rows"] if row["variant"] == variant]
    if not found:
        known = ", ".join(dict.fromkeys(row["variant"] for row in result["rows"]))
        raise ResultsError(f"results: {result['benchmark']} has no rows called {variant!r}, there are: {known}")
    return found


def columns(result: dict[str, Any], variant: str, *names: str) -> list[np.ndarray]:
    """Columns of the rows of one variant, by the keys of TIMED_ROW or of DERIVED.

    Raises:
        ResultsError: no such rows.
        KeyError: no such column.
    """
    found = rows_of(result, variant)
    return [np.array([DERIVED[name](row) if name in DERIVED else row[name] for row in found]) for name in names]


def save(result: dict[str, Any], folder: Path = RESULTS) -> Path:
    """Write a results file whole or not at all; return where.

    Raises:
        ResultsError: the result does not have the form that `load` asks for.
    """
    name, device = result.get("benchmark", ""), result.get("device", "")
    fault = fault_of(result, name, device)
    if fault:
        raise ResultsError(f"results: refused to write {name}_{device}.json: {fault}")
    folder.mkdir(parents=True, exist_ok=True)
    path = path_of(name, device, folder)
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    os.replace(unfinished, path)
    return path


def fault_of(result: Any, name: str, device: str) -> str | None:
    """What is wrong with the form of a result, in a few words; None when nothing is."""
    if not isinstance(result, dict):
        return f"it holds a {type(result).__name__}, not an object"
    fault = _fault_of_fields(result, DECODE_HEADER if name == "decode" else HEADER)
    if fault:
        return fault
    if (result["benchmark"], result["device"]) != (name, device):
        return f"it is of {result['benchmark']} on {result['device']}"
    if not result["rows"]:
        return "it has no rows"
    for i, row in enumerate(result["rows"]):
        fault = _fault_of_fields(row, ROWS[name]) if isinstance(row, dict) else "not an object"
        if fault:
            return f"row {i}: {fault}"
    return None


def machine(result: dict[str, Any]) -> str:
    """A few words for a chart's title: what was timed, in which number format, and whether it was disturbed."""
    name, n_cpus, dtype = result["machine"]["name"], result["machine"]["n_cpus"], result["model"]["dtype"]
    words = [name] if result["device"] == "cuda" else [name, f"{n_cpus} cores"]
    return ", ".join([*words, dtype, *(["contended"] if result["contended"] else [])])


def describe(result: dict[str, Any]) -> str:
    """Where, when and with what a result was measured, in one line."""
    return (
        f"{result['benchmark']}: {machine(result)}, torch {result['versions']['torch']}, {result['date']}, "
        f"read ceiling {result['read_bandwidth_bytes_per_s'] / 1e9:.1f} GB/s"
    )


def _fault_of_fields(fields: dict[str, Any], wanted: dict[str, tuple[type, ...]]) -> str | None:
    for key, types in wanted.items():
        if key not in fields:
            return f"{key} is missing"
        # bool is an int to Python, and never one here.
        if not isinstance(fields[key], types) or (isinstance(fields[key], bool) and bool not in types):
            return f"{key} is {fields[key]!r}"
    return None


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
