"""The decoders of one run on the CPU: built, held to the same tokens, timed in turns."""

import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from kvlab.bench.decode.contenders import Contender, Lean, Readable, TorchReadable, Unavailable
from kvlab.bench.decode.model import Model, find
from kvlab.bench.decode.peers import HuggingFaceDynamic, HuggingFaceStatic, LlamaCpp
from kvlab.bench.decode.setting import DecodeSetting

ALL: tuple[tuple[type[Contender], tuple[str, ...]], ...] = (
    (Lean, ("float32", "float16")),
    (Readable, ("float32",)),
    (TorchReadable, ("float32", "bfloat16")),
    (HuggingFaceDynamic, ("float32", "bfloat16", "float16")),
    (HuggingFaceStatic, ("float32", "bfloat16")),
    (LlamaCpp, ("float32", "bfloat16", "float16")),
)
PROMPT = (504, 3575, 282, 4649, 314, 253, 1789, 28, 284)  # any tokens do; on the real model they begin a sentence

Times = dict[tuple[int, int], list[float]]  # by (contender, context): seconds of every step


def run(s: DecodeSetting, between: Callable[[], None]) -> dict[str, Any]:
    """Time every decoder at every context; `between` is called before, between and after the contexts.

    Returns:
        model, rows (with times_s instead of figures), tokens (which decoder said what), skipped.
    """
    model = find(s.shape_name)
    max_len = max(*s.contexts, len(PROMPT) + s.n_checked) + 1
    contenders, skipped = build(model, s.dtypes, max_len)
    tokens = agree(contenders, model, s.n_checked)
    times: Times = {}
    between()
    for context in s.contexts:
        times |= in_turns(contenders, context, s)
        between()
    rows = [
        {
            "decoder": contenders[i].name,
            "dtype": contenders[i].dtype,
            "context": context,
            "batch": 1,
            "times_s": found,
            "bytes_per_token": contenders[i].bytes_per_token(context),
            "kv_bytes": contenders[i].bytes_per_token(context) - contenders[i].bytes_per_token(0),
        }
        for (i, context), found in sorted(times.items())
    ]
    return {"model": model, "rows": rows, "tokens": tokens, "skipped": skipped}


def build(
    model: Model, dtypes: Iterable[str], max_len: int, kinds: Any = ALL
) -> tuple[list[Contender], list[dict[str, str]]]:
    """Every decoder in the formats asked for, and by name those that cannot run here."""
    contenders, skipped = [], []
    for kind, formats in kinds:
        for dtype in formats:
            if dtype not in dtypes:
                continue
            try:
                contenders.append(kind(model, dtype, max_len))
                print(f"  built {kind.name} {dtype}", file=sys.stderr, flush=True)
            except Unavailable as why:
                skipped.append({"decoder": kind.name, "dtype": dtype, "why": str(why)})
    return contenders, skipped


def agree(contenders: list[Contender], model: Model, n_new: int) -> list[dict[str, Any]]:
    """The greedy tokens of each decoder after one prompt, and how many are those of the first one (float32).

    Raises:
        ValueError: a float32 decoder says other tokens: it computes something else, and its time would mean nothing.
    """
    ids = np.array(PROMPT) % model.shape.vocab_size
    said = [contender.greedy(ids, n_new) for contender in contenders]
    found = []
    for contender, tokens in zip(contenders, said, strict=True):
        same = next((i for i, (a, b) in enumerate(zip(tokens, said[0], strict=True)) if a != b), n_new)
        if contenders[0].dtype == contender.dtype == "float32" and same < n_new:
            raise ValueError(f"{contender.name} float32 says {tokens}, {contenders[0].name} float32 says {said[0]}")
        found.append({"decoder": contender.name, "dtype": contender.dtype, "same": same, "of": n_new})
    return found


def in_turns(contenders: list[Contender], context: int, s: DecodeSetting) -> Times:
    """n_rounds times around: each decoder rests, then takes one turn. A disturbance of seconds falls on all of them."""
    times: Times = {(i, context): [] for i in range(len(contenders))}
    for _ in range(s.n_rounds):
        for i, contender in enumerate(contenders):
            time.sleep(s.settle_s)
            times[i, context] += contender.turn(context, s.n_steps)
    return times
