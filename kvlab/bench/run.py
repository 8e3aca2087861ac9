"""The command line of the benchmarks. argparse and print, since it must run where only torch and NumPy are."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvlab.bench import widgets
from kvlab.bench.benchmarks import BENCHMARKS, SHAPES, Setting, setting
from kvlab.bench.decode.command import OneLine
from kvlab.bench.decode.command import main as decode
from kvlab.bench.results import RESULTS, describe, save
from kvlab.timing import (
    LoadWatch,
    device_facts,
    is_contended,
    matmul_flops_per_s,
    pick_device,
    read_bandwidth,
    versions,
)

DECODE = "decode"  # has options of its own
NAMES = (*BENCHMARKS, DECODE, widgets.NAME)  # the widgets are drawn in a browser: no lesson reads their file


def main(arguments: Sequence[str] | None = None, prog: str = "python -m kvlab.bench") -> int:
    """Run the benchmarks asked for and write their results; 0 when all did, 1 when one could not, 2 for wrong usage."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    if arguments[:1] == [DECODE]:
        return decode(arguments[1:])
    parser = OneLine(
        prog=prog,
        description="Measure decode on this machine and write results/NAME_DEVICE.json.",
        epilog="decode, given alone, takes options of its own: decode --help",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(NAMES)}; all when left out")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="cuda where there is one, else cpu")
    parser.add_argument("--shape", choices=[n for n in SHAPES if n != "tiny"], help="small on cpu, llama-8b on cuda")
    parser.add_argument("--quick", action="store_true", help="toy sizes, to see that it runs; writes only to --out")
    parser.add_argument("--out", type=Path, help="folder for the files, instead of results/")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in NAMES]
    if unknown:
        print(f"no benchmark is called {', '.join(unknown)}, there are: {', '.join(NAMES)}", file=sys.stderr)
        return 2
    device = options.device or pick_device()
    try:
        facts = device_facts(device)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    chosen = setting(device, options.shape, options.quick)
    folder = options.out or (None if options.quick else RESULTS)
    failed = False
    for name in options.names or (BENCHMARKS if options.quick else NAMES):
        try:
            if name == widgets.NAME:
                print(report_widgets(options.out), flush=True)
                continue
            if name == DECODE:
                flags = ["--quick"] * options.quick + (["--out", str(options.out)] if options.out else [])
                failed |= decode(["--device", device, *flags]) != 0
                continue
            result = measure(name, chosen, facts, options.quick)
        except Exception as error:  # one benchmark that fails must not take the others with it
            print(f"{name}: {type(error).__name__}: {' '.join(str(error).split())}", file=sys.stderr)
            failed = True
            continue
        print(report(result), flush=True)
        if folder is not None and result["rows"]:
            print(f"  written to {save(result, folder)}\n", flush=True)
    return 1 if failed else 0


def report_widgets(folder: Path | None) -> str:
    """Time the widgets in a browser; return a table, and write what was found to a folder that was asked for."""
    try:
        result = widgets.measure()
    except RuntimeError as error:  # a GPU machine has no browser, and need not
        return f"widgets: left out: {error}"
    written = "" if folder is None else f"\n  written to {widgets.save(result, folder)}\n"
    return widgets.report(result) + written


def measure(name: str, chosen: Setting, facts: dict[str, Any], quick: bool = False) -> dict[str, Any]:
    """Run one benchmark with both ceilings taken before and after it, and the load watched all the while."""
    with LoadWatch() as load:
        reads, peak = _ceilings(chosen)
        rows, skipped = BENCHMARKS[name](chosen)
        reads_after, peak_after = _ceilings(chosen)
    reads = {kernel: per_s + reads_after[kernel] for kernel, per_s in reads.items()}
    best = max(reads, key=lambda kernel: max(reads[kernel]))
    return {
        "benchmark": name,
        "device": chosen.device,
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "command": f"python -m kvlab.bench {name} --device {chosen.device} --shape {chosen.shape_name}",
        "quick": quick,
        "machine": facts,
        "versions": versions(),
        "model": chosen.model_facts(),
        "read_bandwidth_bytes_per_s": max(reads[best]),
        "peak_flops_per_s": max(peak, peak_after),
        "contended": is_contended(load.others_share, reads[best]),
        "others_share": load.others_share,
        "rows": rows,
        "skipped": skipped,
    }


def _ceilings(chosen: Setting) -> tuple[dict[str, list[float]], float]:
    """Bytes a second read by each kernel, and the FLOP/s of a matrix product in the model's number format."""
    reads = read_bandwidth(chosen.device, chosen.read_bytes)
    return reads, matmul_flops_per_s(chosen.device, chosen.dtype, chosen.matmul_size)


def report(result: dict[str, Any]) -> str:
    """A result as a table for the terminal."""
    lines = [describe(result)]
    if result["contended"]:
        lines.append("  CONTENDED: other programs were at work, measure again on a quiet machine")
    if result["benchmark"] == "caches" and result["rows"]:
        from kvlab.bench.caches import table  # loads the course's caches, which a bare machine cannot

        lines += table(result["rows"])
    for row in result["rows"] if result["benchmark"] != "caches" else []:
        if "per_s" in row:
            lines.append(f"  {row['variant']:<8} {row['kernel']:<24} {row['dtype']:<9} {row['per_s'] / 1e9:9.1f} G/s")
            continue
        rate = row["bytes"] / row["ms_min"] / 1e6
        lines.append(
            f"  {row['variant']:<13} {row['dtype']:<9} batch {row['batch']:<3} context {row['context']:<7}"
            f"{row['ms_min']:10.3f} ms min {row['ms_median']:10.3f} ms median {rate:9.1f} GB/s"
        )
    lines += [
        f"  left out: batch {left['batch']} context {left['context']}: {left['why']}" for left in result["skipped"]
    ]
    return "\n".join(lines)
