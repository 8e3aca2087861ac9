"""The decoder of `kvlab.bench.model` on a GPU: one step queued kernel by kernel, and replayed as one CUDA graph.

The CUDA calls are in `kvlab.bench.cuda`; on the CPU the same code runs with the clock of the host and no graph, which
is how it is tested where there is no GPU.
"""

import sys
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch

from kvlab.bench.decode.setting import DecodeSetting, shape_of
from kvlab.bench.model import BenchDecoder
from kvlab.roofline import ModelShape
from kvlab.sizes import cache_bytes

Step = Callable[[], object]
CHECKED = ModelShape(n_layers=3, d_model=128, n_heads=8, n_kv_heads=2, head_dim=16, d_ff=320, vocab_size=512)
MOST_APART = {"float32": 1e-3, "float16": 3e-2, "bfloat16": 2e-1}  # of logits around 1, after rounding in that format


def run(s: DecodeSetting, between: Callable[[], None]) -> dict[str, Any]:
    """Contexts at batch 1, then batches at one context; what does not fit is named. See `cpu.run` for the answer.

    Raises:
        ValueError: the device computes other logits than the CPU does in float32.
    """
    shape, rows = shape_of(s), []
    skipped: list[dict[str, Any]] = []
    tokens = [compare(s.device, dtype) for dtype in dict.fromkeys(("float32", *s.dtypes))]
    between()
    for dtype in s.dtypes:
        size = getattr(torch, dtype).itemsize
        lack = why_too_big(s.device, shape.n_params * size)
        if lack:
            skipped.append({"decoder": "kvlab", "dtype": dtype, "why": lack})
            continue
        model = BenchDecoder(shape, dtype, s.device, max(*s.contexts, s.batch_context))
        cases = [(1, n) for n in s.contexts] + [(b, s.batch_context) for b in s.batches if b > 1]
        for batch, context in dict.fromkeys(cases):
            held = cache_bytes(batch, context, shape.n_layers, shape.n_kv_heads, shape.head_dim, size)
            lack = why_too_big(s.device, held)
            if lack:
                skipped.append({"decoder": "kvlab", "dtype": dtype, "batch": batch, "context": context, "why": lack})
                continue
            rows += time_case(s, model, batch, context, skipped)
            print(f"  timed {dtype} batch {batch} context {context}", file=sys.stderr, flush=True)
        between()
        del model
    name = SimpleNamespace(name=f"random {s.shape_name}", why_random="the shape is timed, not a model")
    return {"model": name, "rows": rows, "tokens": tokens, "skipped": skipped}


def compare(device: str, dtype: str) -> dict[str, Any]:
    """Logits of a small model on the device against the CPU's in float32, by prefill and by steps.

    Raises:
        ValueError: they are further apart than rounding in this format explains.
    """
    right = BenchDecoder(CHECKED, "float32", "cpu", max_len=16)
    tested = BenchDecoder(CHECKED, dtype, device, max_len=16)
    for ours, theirs in zip(tested.layers, right.layers, strict=True):
        for name, w in theirs.items():
            ours[name].copy_(w)
    for name in ("head", "embed", "final_norm"):
        getattr(tested, name).copy_(getattr(right, name))
    ids = torch.arange(11)[None] * 37 % CHECKED.vocab_size
    wanted, apart = right(ids), 0.0
    for attention in ("products", "sdpa"):
        tested.attention = attention
        buffers = tested.make_buffers(1, 16)
        for part in (ids[:, :8], *ids[:, 8:].split(1, dim=1)):
            logits = tested(part.to(device), buffers)
        apart = max(apart, float((logits.float().cpu() - wanted).abs().max()))
    if not apart <= MOST_APART[dtype]:
        raise ValueError(f"{device} {dtype}: logits are {apart:.3g} from the CPU's in float32: expected rounding alone")
    return {"decoder": f"kvlab on {device}", "dtype": dtype, "same": 1, "of": 1, "logits_apart": apart}


def time_case(
    s: DecodeSetting, model: BenchDecoder, batch: int, context: int, skipped: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Rows of one batch and context: every way to take the step, in turns."""
    buffers = model.make_buffers(batch, context)
    one = torch.zeros(batch, 1, dtype=torch.long, device=s.device)
    steps: dict[str, Step] = {}
    for name, make in ways(s, model, buffers, one, context):
        try:
            steps[name] = make()
            steps[name]()
        except Exception as error:  # no Triton, no compiler, no memory: the others still count
            steps.pop(name, None)
            why = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            skipped.append({"decoder": name, "dtype": model.dtype_name, "batch": batch, "context": context, "why": why})
    times_s: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(s.n_rounds):
        for name, step in steps.items():
            model.attention = "sdpa" if name.endswith("sdpa") else "products"
            times_s[name] += step_times_s(s.device, step, 2 if name == "kvlab-uncached" else s.n_steps)
    cached, uncached = model.work(1, context - 1, batch, True), model.work(context, 0, batch, False)
    return [
        {
            "decoder": name,
            "dtype": model.dtype_name,
            "context": context,
            "batch": batch,
            "times_s": times,
            "bytes_per_token": (uncached if name == "kvlab-uncached" else cached)["bytes"],
            "kv_bytes": (uncached if name == "kvlab-uncached" else cached)["kv_bytes"],
        }
        for name, times in times_s.items()
    ]


def ways(
    s: DecodeSetting, model: BenchDecoder, buffers: Any, one: torch.Tensor, context: int
) -> Iterator[tuple[str, Callable[[], Step]]]:
    """By name, functions that make the step. A graph keeps the attention that it was recorded with."""

    def step() -> None:
        buffers.length = context - 1
        model(one, buffers)

    def graph_of(attention: str, prepare: Callable[[Step], Step] = lambda same: same) -> Callable[[], Step]:
        def make() -> Step:
            model.attention = attention
            return capture(s.device, prepare(step))

        return make

    yield "kvlab-eager", lambda: step
    yield "kvlab-graph", graph_of("products")
    yield "kvlab-graph-sdpa", graph_of("sdpa")
    if s.device == "cuda" and len(one) == 1 and context == s.contexts[0]:  # compiling takes a minute: once is enough
        yield "kvlab-compiled-graph", graph_of("products", lambda plain: torch.compile(plain, dynamic=False))
    if context <= s.longest_uncached and len(one) == 1:
        full = torch.zeros(1, context, dtype=torch.long, device=s.device)
        yield "kvlab-uncached", lambda: lambda: model(full)


def capture(device: str, step: Step) -> Step:
    """The step as one CUDA graph; on the CPU the step itself."""
    if device != "cuda":
        return step
    from kvlab.bench.cuda import captured

    return captured(step)


def step_times_s(device: str, step: Step, n_steps: int) -> list[float]:
    """Seconds of each step, after one that is not counted."""
    if device == "cuda":
        from kvlab.bench.cuda import event_times_ms

        return [ms / 1000 for ms in event_times_ms(step, 1, n_steps)]
    times_s = []
    for _ in range(n_steps + 1):
        start = time.perf_counter()
        step()
        times_s.append(time.perf_counter() - start)
    return times_s[1:]


def why_too_big(device: str, n_bytes: int) -> str | None:
    """Why this many bytes more do not fit, or None."""
    from kvlab.bench.benchmarks import lack

    return lack(device, n_bytes)
