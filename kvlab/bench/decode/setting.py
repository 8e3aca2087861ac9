"""How much of the decode benchmark to run, and what was asked for that cannot be."""

from dataclasses import dataclass, replace
from typing import Any

from kvlab.bench.decode.model import SHAPES
from kvlab.roofline import ModelShape

DTYPES = ("float32", "bfloat16", "float16")
DEVICE_SHAPES = {"cpu": ("smollm2-135m", "tiny"), "cuda": ("llama-8b", "tiny")}


@dataclass(frozen=True)
class DecodeSetting:
    """contexts: tokens in the cache when a step ends, the new one included. batches: of the GPU, at batch_context.

    n_rounds turns of n_steps timed steps each, every decoder in turn; settle_s of rest before each, in which the
    threads of the one before fall asleep.
    """

    device: str = "cpu"
    shape_name: str = "smollm2-135m"
    dtypes: tuple[str, ...] = DTYPES
    contexts: tuple[int, ...] = (64, 256, 1024, 4096)
    batches: tuple[int, ...] = (1,)
    batch_context: int = 1024
    longest_uncached: int = 16384
    n_rounds: int = 4
    n_steps: int = 6
    settle_s: float = 0.05
    read_bytes: int | None = None
    n_checked: int = 16  # tokens that every decoder must agree on before it is timed
    quick: bool = False


CPU = DecodeSetting()
CUDA = DecodeSetting(
    device="cuda",
    shape_name="llama-8b",
    dtypes=("bfloat16",),
    contexts=(1024, 4096, 16384, 65536, 131072),
    batches=(1, 4, 16, 64),
    n_rounds=3,
    n_steps=10,
    settle_s=0.0,
)
QUICK: dict[str, Any] = {
    "shape_name": "tiny",
    "contexts": (16, 32),
    "n_rounds": 2,
    "n_steps": 2,
    "settle_s": 0.0,
    "read_bytes": 2**22,
}


def choose(
    device: str,
    shape_name: str | None = None,
    dtypes: tuple[str, ...] | None = None,
    contexts: tuple[int, ...] | None = None,
    batches: tuple[int, ...] | None = None,
    quick: bool = False,
) -> DecodeSetting:
    """The standard setting of a device with what was asked for put in.

    Raises:
        ValueError: a shape that this device is not timed on, a format there is none of, a context too short to time.
    """
    chosen = CUDA if device == "cuda" else CPU
    if quick:
        chosen = replace(chosen, quick=True, batches=(1, 2), batch_context=16, longest_uncached=16, **QUICK)
    known = DEVICE_SHAPES[device]
    if shape_name is not None and shape_name not in known:
        raise ValueError(f"--shape: expected {' or '.join(known)} on {device}, got {shape_name}")
    asked: dict[str, Any] = {"shape_name": shape_name, "dtypes": dtypes, "contexts": contexts, "batches": batches}
    chosen = replace(chosen, **{name: value for name, value in asked.items() if value is not None})
    unknown = [name for name in chosen.dtypes if name not in DTYPES]
    if unknown:
        raise ValueError(f"--dtype: expected some of {', '.join(DTYPES)}, got {', '.join(unknown)}")
    shortest = chosen.n_steps + 2
    if min(chosen.contexts) < shortest:
        raise ValueError(f"--context: expected at least {shortest} tokens, got {min(chosen.contexts)}")
    if device == "cpu" and batches is not None:
        raise ValueError("--batch: the decoders timed on a CPU decode one sequence; it is for --device cuda")
    return chosen


def shape_of(s: DecodeSetting) -> ModelShape:
    """The ModelShape of a setting, without its weights."""
    from kvlab.bench.benchmarks import SHAPES as TIMED

    return SHAPES.get(s.shape_name) or TIMED[s.shape_name]
