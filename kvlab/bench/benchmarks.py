"""What is measured. Each benchmark takes a Setting and returns its rows, and what it left out and why."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from kvlab.bench.model import BenchDecoder
from kvlab.roofline import ModelShape
from kvlab.sizes import cache_bytes, load_config
from kvlab.timing import interleave, matmul_flops_per_s, read_bandwidth, summary, synchronizer

LIMIT_S = 15.0  # of one comparison: on a busy machine a run gets coarser, not endless

Rows = list[dict[str, Any]]
Step = Callable[[], object]

SHAPES = {
    # Weights several times a laptop's last-level cache, and an uncached step over 2,048 tokens in about a second.
    "small": ModelShape(
        n_layers=8, d_model=512, n_heads=8, n_kv_heads=4, head_dim=64, d_ff=2048, vocab_size=4096, tied=True
    ),
    "llama-8b": ModelShape.from_config(load_config("llama-3.1-8b")),
    "tiny": ModelShape(n_layers=1, d_model=32, n_heads=4, n_kv_heads=2, head_dim=8, d_ff=48, vocab_size=64, tied=True),
}


@dataclass(frozen=True)
class Setting:
    """One device, one model, and how much of it to measure.

    contexts: tokens in the cache when a step ends, the new one included; those above `longest_uncached` are timed with
        a cache only.
    """

    device: str
    shape_name: str
    dtype: str
    contexts: tuple[int, ...]
    longest_uncached: int
    batches: tuple[int, ...]
    batch_context: int
    dtypes: tuple[str, ...]
    n_rounds: int
    n_steps: int  # cached steps in each round
    read_bytes: int | None = None  # None: as large as it takes to leave the processor's caches
    matmul_size: int = 1024

    @property
    def shape(self) -> ModelShape:
        return SHAPES[self.shape_name]

    def decoder(self, dtype: str | None = None, max_len: int | None = None) -> BenchDecoder:
        return BenchDecoder(self.shape, dtype or self.dtype, self.device, max_len or max(self.contexts))

    def model_facts(self) -> dict[str, Any]:
        size = getattr(torch, self.dtype).itemsize
        return {
            "name": self.shape_name,
            "dtype": self.dtype,
            "n_params": self.shape.n_params,
            "weight_bytes": self.shape.n_read_params * size,
            **asdict(self.shape),
        }


CPU = Setting(
    device="cpu",
    shape_name="small",
    dtype="float32",
    contexts=(64, 128, 256, 512, 1024, 2048, 4096, 8192),
    longest_uncached=2048,
    batches=(1, 2, 4, 8, 16),
    batch_context=512,
    dtypes=("float32", "bfloat16"),
    n_rounds=4,
    n_steps=8,
)
CUDA = replace(
    CPU,
    device="cuda",
    shape_name="llama-8b",
    dtype="bfloat16",
    contexts=(1024, 2048, 4096, 16384, 65536, 131072),
    longest_uncached=16384,
    batches=(1, 2, 4, 8, 16, 32, 64),
    batch_context=1024,
    dtypes=("bfloat16", "float16"),
    n_steps=20,
    matmul_size=8192,
)


def setting(device: str, shape_name: str | None = None, quick: bool = False) -> Setting:
    """The standard setting of a device; `quick` shrinks everything to a second or two, to see that it runs."""
    chosen = CUDA if device == "cuda" else CPU
    if quick:
        chosen = replace(
            chosen,
            shape_name="tiny",
            contexts=(16, 32),
            longest_uncached=16,
            batches=(1, 2),
            batch_context=16,
            n_rounds=1,
            n_steps=2,
            read_bytes=2**22,
            matmul_size=128,
        )
    return replace(chosen, shape_name=shape_name) if shape_name else chosen


def ceilings(s: Setting) -> tuple[Rows, Rows]:
    """What this device can do at best: read bandwidth by kernel, matrix products by dtype, the model's own products."""
    reads = read_bandwidth(s.device, s.read_bytes)
    rows = [_ceiling("read", kernel, "float32", max(per_s)) for kernel, per_s in reads.items()]
    for number_format in ("float32", "bfloat16"):
        rows.append(
            _ceiling("matmul", "torch a @ a", number_format, matmul_flops_per_s(s.device, number_format, s.matmul_size))
        )
    return rows + _products(s), []


def _products(s: Setting) -> Rows:
    """Bytes a second that the matrix-vector products of one decode step read, with nothing between them."""
    layers = s.decoder(max_len=1).layers
    pairs = [
        (torch.ones(1, layer[name].shape[0], dtype=layer[name].dtype, device=s.device), layer[name])
        for layer in layers
        for name in ("qkv", "wo", "gate_up", "down")
    ]
    n_bytes = sum(w.nbytes for _, w in pairs)
    kernels: dict[str, Step] = {"torch x @ w": lambda: [x @ w for x, w in pairs]}
    if s.device == "cpu" and s.dtype == "float32":
        arrays = [(x.numpy(), w.numpy()) for x, w in pairs]
        kernels["numpy x @ w"] = lambda: [x @ w for x, w in arrays]
    times_s = _in_turn(s, kernels)
    return [_ceiling("matvec", kernel, s.dtype, n_bytes / min(times)) for kernel, times in times_s.items()]


def _ceiling(variant: str, kernel: str, dtype: str, per_s: float) -> dict[str, Any]:
    return {"variant": variant, "kernel": kernel, "dtype": dtype, "per_s": per_s}


def context(s: Setting) -> tuple[Rows, Rows]:
    """One step with a cache, one without, and the prefill of a prompt, at each context."""
    rows, skipped = [], []
    model = s.decoder()
    for n in s.contexts:
        why = _lack(s, _cache_bytes(s, 1, n))
        if why:
            skipped.append({"context": n, "batch": 1, "why": why})
            continue
        rows += _steps_at(s, model, n, with_uncached=n <= s.longest_uncached)
    return rows, skipped


def _steps_at(s: Setting, model: BenchDecoder, n: int, with_uncached: bool) -> Rows:
    buffers = model.make_buffers(1, n)
    one, full = (torch.zeros(1, length, dtype=torch.long, device=s.device) for length in (1, n))
    steps: dict[str, Step] = {"cached": _cached_step(model, buffers, one, n)}
    work = {"cached": model.work(1, n - 1, 1, cached=True)}
    n_each = {"cached": s.n_steps}
    if s.device == "cuda":
        from kvlab.bench.cuda import captured

        steps["cached-graph"], work["cached-graph"] = captured(steps["cached"]), work["cached"]
        n_each["cached-graph"] = s.n_steps
    if with_uncached:

        def prefill() -> None:
            buffers.length = 0
            model(full, buffers)

        steps |= {"uncached": lambda: model(full), "prefill": prefill}
        work |= {name: model.work(n, 0, 1, cached=name == "prefill") for name in ("uncached", "prefill")}
    times_s = interleave(steps, s.n_rounds, synchronizer(s.device), n_each=n_each, limit_s=LIMIT_S)
    return [_row(name, s.dtype, 1, n, times, work[name]) for name, times in times_s.items()]


def _cached_step(model: BenchDecoder, buffers: Any, ids: torch.Tensor, n: int) -> Step:
    """A decode step that ends with n tokens in the cache, every time it is called."""

    def step() -> None:
        buffers.length = n - 1
        model(ids, buffers)

    return step


def batch(s: Setting) -> tuple[Rows, Rows]:
    """One decode step for 1 to many sequences at once, each with a cache of its own."""
    rows, skipped = [], []
    model = s.decoder(max_len=s.batch_context)
    for b in s.batches:
        why = _lack(s, _cache_bytes(s, b, s.batch_context))
        if why:
            skipped.append({"context": s.batch_context, "batch": b, "why": why})
            continue
        ids = torch.zeros(b, 1, dtype=torch.long, device=s.device)
        step = _cached_step(model, model.make_buffers(b, s.batch_context), ids, s.batch_context)
        times_s = _in_turn(s, {"cached": step})["cached"]
        work = model.work(1, s.batch_context - 1, b, cached=True)
        rows.append(_row("cached", s.dtype, b, s.batch_context, times_s, work))
    return rows, skipped


def append(s: Setting) -> tuple[Rows, Rows]:
    """Storing one token's keys and values in all layers: a cache grown by concatenation, and one allocated once."""
    try:
        from kvlab.torch_caches import ConcatCache, StaticCache
    except ImportError as error:  # a bare machine: the course's caches carry jaxtyping signatures
        return [], [{"context": 0, "batch": 1, "why": f"the course's caches do not load: {error}"}]
    rows, skipped = [], []
    shape, dtype = s.shape, getattr(torch, s.dtype)
    one = torch.ones(1, shape.n_kv_heads, 1, shape.head_dim, dtype=dtype, device=s.device)
    for n in s.contexts:
        why = _lack(s, 3 * _cache_bytes(s, 1, n))
        if why:
            skipped.append({"context": n, "batch": 1, "why": why})
            continue
        past = one.expand(1, shape.n_kv_heads, n - 1, shape.head_dim)
        static = [
            StaticCache(1, shape.n_kv_heads, n + s.n_rounds * s.n_steps, shape.head_dim, dtype, s.device)
            for _ in range(shape.n_layers)
        ]
        concat = [ConcatCache(1, shape.n_kv_heads, shape.head_dim) for _ in range(shape.n_layers)]
        for caches in (static, concat):
            _update_all(caches, past)()
        steps = {"concat": _update_all(concat, one), "static": _update_all(static, one)}
        times_s = _in_turn(s, steps)
        # Concatenation reads the old rows and writes them again; a buffer takes the new row alone.
        moved = {"concat": 2 * _cache_bytes(s, 1, n), "static": 2 * _cache_bytes(s, 1, 1)}
        rows += [
            _row(name, s.dtype, 1, n, times, {"bytes": moved[name], "kv_bytes": moved[name], "flops": 0})
            for name, times in times_s.items()
        ]
    return rows, skipped


def _update_all(caches: Sequence[Any], rows: torch.Tensor) -> Step:
    def step() -> None:
        for cache in caches:
            cache.update(rows, rows)

    return step


def dtype(s: Setting) -> tuple[Rows, Rows]:
    """The same decode step in other number formats."""
    steps, work, skipped = {}, {}, []
    n = s.batch_context
    for name in s.dtypes:
        why = _lack(s, s.shape.n_params * getattr(torch, name).itemsize)
        if why:
            skipped.append({"context": n, "batch": 1, "why": f"{name}: {why}"})
            continue
        model = s.decoder(name, max_len=n)
        ids = torch.zeros(1, 1, dtype=torch.long, device=s.device)
        steps[name] = _cached_step(model, model.make_buffers(1, n), ids, n)
        work[name] = model.work(1, n - 1, 1, cached=True)
    times_s = _in_turn(s, steps)
    return [_row("cached", name, 1, n, times, work[name]) for name, times in times_s.items()], skipped


def caches(s: Setting) -> tuple[Rows, Rows]:
    """Every cache of the course: appending one token, gathering all rows, growing from nothing, bytes held."""
    try:
        from kvlab.bench.caches import measure
    except ImportError as error:  # as for `append`
        return [], [{"context": 0, "batch": 1, "why": f"the course's caches do not load: {error}"}]
    return measure(s)


def _in_turn(s: Setting, steps: dict[str, Step]) -> dict[str, list[float]]:
    return interleave(steps, s.n_rounds * s.n_steps, synchronizer(s.device), limit_s=LIMIT_S)


def _row(
    variant: str, dtype: str, batch: int, context: int, times_s: list[float], work: dict[str, Any]
) -> dict[str, Any]:
    return {"variant": variant, "dtype": dtype, "batch": batch, "context": context, **summary(times_s), **work}


def _cache_bytes(s: Setting, n_sequences: int, n_total: int) -> int:
    c = s.shape
    return cache_bytes(n_sequences, n_total, c.n_layers, c.n_kv_heads, c.head_dim, getattr(torch, s.dtype).itemsize)


def _lack(s: Setting, n_bytes: int) -> str | None:
    return lack(s.device, n_bytes)


def lack(device: str, n_bytes: int) -> str | None:
    """Why `n_bytes` more do not fit in the device's memory, or None. A tenth is left for activations and copies."""
    if device == "cuda":
        torch.cuda.empty_cache()
        free = torch.cuda.mem_get_info()[0]
    else:
        from kvlab.environment import look

        free = (look().memory_bytes or 2**62) // 2
    if n_bytes <= 0.9 * free:
        return None
    return f"needs {n_bytes / 1e9:.1f} GB more, {free / 1e9:.1f} GB are free"


BENCHMARKS: dict[str, Callable[[Setting], tuple[Rows, Rows]]] = {
    "ceilings": ceilings,
    "context": context,
    "batch": batch,
    "append": append,
    "dtype": dtype,
    "caches": caches,
}
