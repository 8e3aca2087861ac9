"""Benchmarks of decode: `python -m kvlab.bench` measures this machine and writes `results/`, which the lessons read.

The chain of imports below `kvlab.bench` needs torch and NumPy alone, so that it runs on a bare GPU machine. Each
benchmark is a function in `kvlab.bench.benchmarks`; `kvlab.bench.results` is the one home of the files' form.
"""

from collections.abc import Sequence

from kvlab.bench.results import ResultsError, columns, describe, load, machine, measured_devices, rows_of

__all__ = ["ResultsError", "columns", "describe", "load", "machine", "main", "measured_devices", "rows_of"]


def main(arguments: Sequence[str] | None = None, prog: str = "python -m kvlab.bench") -> int:
    """The command line, with `sys.argv` or the arguments given; returns the exit status."""
    from kvlab.bench.run import main as run  # torch is loaded when something is measured, not when results are read

    return run(arguments, prog)
