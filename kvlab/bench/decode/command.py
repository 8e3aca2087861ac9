"""The command line `kvlab bench decode`: argparse and print, since it must run where only torch and NumPy are."""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from kvlab.bench.decode.measure import measure
from kvlab.bench.decode.setting import DecodeSetting, choose
from kvlab.bench.decode.table import table
from kvlab.bench.results import RESULTS, save
from kvlab.timing import device_facts, pick_device

T = TypeVar("T")


class OneLine(argparse.ArgumentParser):
    """A parser whose complaint is one line, exit 2."""

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message}", file=sys.stderr)
        raise SystemExit(2)


def main(arguments: Sequence[str]) -> int:
    """Measure, print the table or JSON, write results/; 0 when done, 1 when it could not, 2 for wrong usage."""
    parser = OneLine(
        prog="kvlab bench decode",
        description="Time one token's decode: kvlab, Hugging Face, llama.cpp, beside the floor of this memory.",
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), help="cuda where there is one, else cpu")
    parser.add_argument("--shape", help="smollm2-135m on cpu, llama-8b (random weights) on cuda")
    parser.add_argument("--dtype", type=several(str), help="float32,bfloat16,float16 or some of them")
    parser.add_argument("--context", type=several(int), help="tokens in the cache, such as 64,256,1024")
    parser.add_argument("--batch", type=several(int), help="sequences at once, on cuda: 1,4,16")
    parser.add_argument("--threads", type=int, help="of every library; all cores when left out")
    parser.add_argument("--json", action="store_true", help="print the result as JSON, nothing else, on stdout")
    parser.add_argument("--quick", action="store_true", help="a toy model, to see that it runs; writes only to --out")
    parser.add_argument("--out", type=Path, help="folder for the file, instead of results/")
    options = parser.parse_args(arguments)
    try:
        device = options.device or pick_device()
        device_facts(device)
        s = choose(device, options.shape, options.dtype, options.context, options.batch, options.quick)
        set_threads(options.threads)
    except ValueError as error:
        parser.error(str(error))
    standard = s == choose(device) and options.threads is None
    folder = options.out or (RESULTS if standard else None)  # part of a run must not replace the whole one's file
    try:
        result = measure(s, spoken(s, options))
    except (ValueError, RuntimeError, MemoryError) as error:
        print(f"decode: {type(error).__name__}: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    print(json.dumps(result, indent=1) if options.json else table(result), flush=True)
    if folder is not None:
        print(f"  written to {save(result, folder)}", file=sys.stderr)
        picture(result, folder)
    return 0


def spoken(s: DecodeSetting, options: argparse.Namespace) -> str:
    """The command that measures the same again; without --out, which is a path of this machine."""
    given = {"dtype": options.dtype, "context": options.context, "batch": options.batch}
    words = ["python -m kvlab bench decode", f"--device {s.device}", f"--shape {s.shape_name}"]
    words += [f"--{name} {','.join(map(str, value))}" for name, value in given.items() if value is not None]
    words += [f"--threads {options.threads}"] if options.threads is not None else []
    return " ".join([*words, *(["--quick"] if s.quick else [])])


def picture(result: dict[str, Any], folder: Path) -> None:
    """The chart beside the file, where there is something to draw with."""
    try:
        from kvlab.bench.decode.show import draw

        print(f"  drawn in {draw(result, folder)}", file=sys.stderr)
    except ImportError as error:  # a bare machine; the file can be drawn elsewhere
        print(f"  no chart: {error}", file=sys.stderr)


def several(kind: Callable[[str], T]) -> Callable[[str], tuple[T, ...]]:
    """Read "64,256" as (64, 256)."""

    def read(text: str) -> tuple[T, ...]:
        try:
            return tuple(kind(part) for part in text.split(","))
        except ValueError:
            raise argparse.ArgumentTypeError(f"expected values with commas between them, got {text!r}") from None

    return read


def set_threads(n: int | None) -> None:
    """Hold torch, llama.cpp (which takes torch's number) and NumPy's BLAS to n threads; None leaves them.

    Raises:
        ValueError: n below 1, or NumPy's BLAS cannot be told here.
    """
    if n is None:
        return
    if n < 1:
        raise ValueError(f"--threads: expected at least 1, got {n}")
    import torch

    torch.set_num_threads(n)
    try:
        from threadpoolctl import threadpool_limits
    except ImportError:
        raise ValueError("--threads: threadpoolctl is missing, set OPENBLAS_NUM_THREADS and OMP_NUM_THREADS") from None
    threadpool_limits(n)
