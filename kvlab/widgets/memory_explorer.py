"""MemoryExplorer: what a cache takes beside the weights, by the sizes that make it."""

import math
from collections.abc import Mapping
from typing import Any

import traitlets

from kvlab.roofline import HARDWARE, ModelShape
from kvlab.shapes import expect_count
from kvlab.sizes import cache_bytes, cache_shape, crossover_tokens, load_config, max_sequences
from kvlab.style import COLORS
from kvlab.widgets.explorer import MARGIN, Explorer, Scene, control, expect_option
from kvlab.widgets.twin import Px, Refused, plural

DTYPES = {4.0: "fp32", 2.0: "fp16, bf16", 1.0: "fp8, int8", 0.5: "4 bit"}
OPTIONS = {
    "n_layers": (1, 2, 4, 8, 12, 16, 24, 28, 30, 32, 36, 40, 48, 64, 80, 96, 126),
    "n_kv_heads": (1, 2, 3, 4, 8, 16, 32, 64, 128),
    "head_dim": (32, 64, 80, 96, 128, 192, 256),
    "batch": tuple(2**i for i in range(11)),
    "seq_len": tuple(2**i for i in range(7, 21)),
}
LABELS = {"n_layers": "layers", "n_kv_heads": "KV heads", "head_dim": "head width", "batch": "sequences"}
LABELS |= {"seq_len": "tokens each"}
CHART = {"left": 74, "top": 128, "width": 560, "height": 150}


class MemoryExplorer(Explorer):
    """Bytes of the cache beside the weights and a GPU's memory, while its sizes are changed.

    The weights stay those of the model it starts from: other layers or heads change the cache alone.

    Args:
        config: a model that comes with the package ("llama-3.1-8b") or a config.json as a dict.
        weight_bytes: of the model; None prices its parameters at 16 bits.
        device: a name of `kvlab.roofline.HARDWARE`.
        batch, seq_len: sequences, and tokens cached for each, to begin with.

    Attributes:
        n_layers, n_kv_heads, head_dim, bytes_per_element, batch, seq_len, device: settable, also to values that the
            controls do not offer.

    Raises:
        ValueError: a config that is no plain decoder, a size below 1, no such device, weights that cannot be told.

    >>> MemoryExplorer("llama-3.1-8b", seq_len=8192)
    Cache of 1 sequence x 8,192 tokens, 32 layers x 8 KV heads x 128, 2 bytes a number: 131,072 bytes a token, 1 GiB. \
With weights of 14.96 GiB: 15.96 of the 74.51 GiB of an H100 SXM. The cache is larger than the weights from 122,533 \
tokens on; 59 sequences of 8,192 tokens fit.
    """

    title = "What the cache takes"
    height = 322
    arrows = ("seq_len", "batch")
    n_layers = traitlets.Int(1).tag(sync=True, draws=True)
    n_kv_heads = traitlets.Int(1).tag(sync=True, draws=True)
    head_dim = traitlets.Int(1).tag(sync=True, draws=True)
    bytes_per_element = traitlets.Float(2.0).tag(sync=True, draws=True)
    batch = traitlets.Int(1).tag(sync=True, draws=True)
    seq_len = traitlets.Int(1).tag(sync=True, draws=True)
    device = traitlets.Unicode("H100 SXM").tag(sync=True, draws=True)

    def __init__(
        self,
        config: str | Mapping[str, Any] = "llama-3.1-8b",
        weight_bytes: int | None = None,
        device: str = "H100 SXM",
        batch: int = 1,
        seq_len: int = 8192,
    ) -> None:
        fields = load_config(config) if isinstance(config, str) else config
        shape = cache_shape(fields)
        if weight_bytes is None:
            weight_bytes = 2 * (fields.get("_parameters") or ModelShape.from_config(fields).n_params)
        self.weight_bytes = expect_count("weight_bytes", weight_bytes)
        super().__init__(
            n_layers=shape.n_layers,
            n_kv_heads=shape.n_kv_heads,
            head_dim=shape.head_dim,
            batch=batch,
            seq_len=seq_len,
            device=device,
        )

    @property
    def per_token(self) -> int:
        """Bytes that one more token of one sequence takes."""
        return cache_bytes(1, 1, self.n_layers, self.n_kv_heads, self.head_dim, self.bytes_per_element)

    @property
    def cache_bytes(self) -> int:
        """Bytes of the whole cache."""
        return cache_bytes(
            self.batch, self.seq_len, self.n_layers, self.n_kv_heads, self.head_dim, self.bytes_per_element
        )

    @property
    def memory_bytes(self) -> int:
        """Of the chosen device."""
        return int(HARDWARE[self.device].memory_bytes)

    @property
    def crossover(self) -> int:
        """The context at which the cache of the batch becomes larger than the weights."""
        return crossover_tokens(self.weight_bytes, self.per_token, self.batch)

    @property
    def alt(self) -> str:
        """The sizes, the bytes, and how they stand to the weights and the device."""
        total = self.weight_bytes + self.cache_bytes
        over = "" if total <= self.memory_bytes else f" {_gib(total - self.memory_bytes)} GiB too much."
        article = "an" if self.device[0] in "AHLR" else "a"
        n_fit = max_sequences(self.memory_bytes, self.weight_bytes, self.per_token, self.seq_len)
        return (
            f"Cache of {plural(self.batch, 'sequence')} x {plural(self.seq_len, 'token')}, "
            f"{plural(self.n_layers, 'layer')} x {plural(self.n_kv_heads, 'KV head')} x {self.head_dim}, "
            f"{self.bytes_per_element:g} bytes a number: {self.per_token:,} bytes a token, {_gib(self.cache_bytes)} "
            f"GiB. With weights of {_gib(self.weight_bytes)} GiB: {_gib(total)} of the {_gib(self.memory_bytes)} GiB "
            f"of {article} {self.device}.{over} The cache is larger than the weights from "
            f"{plural(self.crossover, 'token')} on; {plural(n_fit, 'sequence')} of {plural(self.seq_len, 'token')} fit."
        )

    def _said(self) -> str:
        return self.alt

    def _controls(self) -> list[dict[str, Any]]:
        made = []
        for name, label in LABELS.items():
            at = getattr(self, name)
            options = sorted({*OPTIONS[name], *([at] if name in ("n_layers", "n_kv_heads", "head_dim") else [])})
            made.append(control(name, label, options, f"{at:,}", [f"{n:,}" for n in options]))
        dtypes = sorted({*DTYPES, self.bytes_per_element}, reverse=True)
        shown = [DTYPES.get(n, f"{n:g} bytes") for n in dtypes]
        made.append(control("bytes_per_element", "a number in", dtypes, "", shown, kind="select"))
        made.append(control("device", "on", list(HARDWARE), self.device, kind="select"))
        return made

    def _scene(self) -> Scene:
        scene = Scene()
        self._bar(scene)
        self._chart(scene)
        return scene

    def _bar(self, scene: Scene) -> None:
        """Weights and cache on one scale with the device's memory."""
        weights, cache, memory = self.weight_bytes, self.cache_bytes, self.memory_bytes
        y, width = 42, scene.width - 2 * MARGIN
        scale = width / (max(memory, weights + cache) * 1.04)
        scene.text(MARGIN, 26, f"weights {_gib(weights)} GiB + cache {_gib(cache)} GiB", 14, bold=True)
        scene.rect((MARGIN, y, memory * scale, 28), "empty")
        scene.rect((MARGIN, y, weights * scale, 28), COLORS["weights"])
        fits = max(0, min(cache, memory - weights))
        start = MARGIN + weights * scale
        scene.rect((start, y, max(1, fits * scale), 28), COLORS["cached"])
        if cache > fits:
            left = MARGIN + max(memory, weights) * scale
            over = (left, y, max(2, MARGIN + (weights + cache) * scale - left), 28)
            scene.rect(over, COLORS["wrong"])
            for x in range(int(left) + 6, int(left + over[2]), 8):  # hatched: too much without colour
                scene.curve([(x - 5, y + 28), (x, y)], "#ffffff", 1)
        limit = MARGIN + memory * scale
        scene.curve([(limit, y - 5), (limit, y + 33)], "ink", 2)
        before = limit > scene.width / 2
        scene.text(limit, y + 45, f"{self.device}: {_gib(memory)} GiB", 11, "end" if before else "start")
        over_by = weights + cache - memory
        words = f"{_gib(over_by)} GiB too much" if over_by > 0 else f"{_gib(-over_by)} GiB free"
        if before:
            scene.text(MARGIN, y + 45, words, 11, bold=over_by > 0)
        else:
            scene.text(scene.width - MARGIN, y + 45, words, 11, "end", bold=True)

    def _chart(self, scene: Scene) -> None:
        """Bytes against context, both logarithmic: the cache, the weights, the device, where they cross."""
        c = CHART
        contexts = OPTIONS["seq_len"]
        per_context_token = self.per_token * self.batch
        least = min(per_context_token * contexts[0], max(1, self.weight_bytes))
        most = max(per_context_token * contexts[-1], self.memory_bytes, self.weight_bytes)
        lo, hi = 5 * math.floor(math.log2(least) / 5), 5 * math.ceil(math.log2(most) / 5)

        def x_of(tokens: Px) -> float:
            share = math.log2(tokens / contexts[0]) / math.log2(contexts[-1] / contexts[0])
            return c["left"] + c["width"] * min(1.0, max(0.0, share))

        def y_of(n_bytes: Px) -> float:
            share = (math.log2(max(n_bytes, 1)) - lo) / (hi - lo)
            return c["top"] + c["height"] * (1 - min(1.0, max(0.0, share)))

        right, bottom = c["left"] + c["width"], c["top"] + c["height"]
        scene.text(
            MARGIN, c["top"] - 10, "bytes against tokens a sequence, both on logarithmic scales", 11, fill="quiet"
        )
        scene.rect((c["left"], c["top"], c["width"], c["height"]), stroke="line")
        for i, n in enumerate(contexts):
            scene.place((x_of(n) - 21, c["top"], 42, c["height"]), "seq_len", i)
            if i % 2 == 1:
                scene.text(x_of(n), bottom + 15, f"{n:,}", 11, "middle")
        for power in range(lo, hi + 1, 5 if hi - lo <= 25 else 10):
            scene.text(c["left"] - 6, y_of(2**power) + 4, _power(power), 11, "end")
        scene.curve([(c["left"], y_of(self.memory_bytes)), (right, y_of(self.memory_bytes))], "ink", 1.5, "6 4")
        scene.text(c["left"] + 6, y_of(self.memory_bytes) - 5, self.device, 11)
        scene.curve([(c["left"], y_of(self.weight_bytes)), (right, y_of(self.weight_bytes))], COLORS["weights"], 3)
        scene.text(c["left"] + 6, y_of(self.weight_bytes) + 15, "weights", 11)
        ends = [(x_of(n), y_of(per_context_token * n)) for n in (contexts[0], contexts[-1])]
        scene.curve(ends, COLORS["cached"], 3)
        scene.text(right - 6, ends[1][1] + 18, "cache", 11, "end")
        if contexts[0] <= self.crossover <= contexts[-1]:
            at = x_of(self.crossover), y_of(self.weight_bytes)
            scene.curve([at, (at[0], bottom)], "quiet", 1, "2 3")
            scene.mark(*at, COLORS["new"], "square", 4)
        scene.mark(x_of(self.seq_len), y_of(self.cache_bytes), COLORS["cached"])
        words = f"crossover at {self.crossover:,} tokens (square); now {self.seq_len:,} (round)"
        scene.text(right, bottom + 34, words, 11, "end")

    @traitlets.validate("n_layers", "n_kv_heads", "head_dim", "batch", "seq_len")
    def _expect_size(self, proposal: dict[str, Any]) -> int:
        name, size = proposal["trait"].name, int(proposal["value"])
        if size < 1:
            raise Refused(f"{name}: expected a whole number of at least 1, got {size}")
        return size

    @traitlets.validate("bytes_per_element")
    def _expect_bytes(self, proposal: dict[str, Any]) -> float:
        size = float(proposal["value"])
        if not (math.isfinite(size) and size > 0):
            raise Refused(f"bytes_per_element: expected a number above 0, got {size}")
        return size

    @traitlets.validate("device")
    def _expect_device(self, proposal: dict[str, Any]) -> str:
        return str(expect_option("device", proposal["value"], list(HARDWARE)))


def _gib(n_bytes: int) -> str:
    """In GiB, to a hundredth and no trailing zeros; more places where it would read 0."""
    gib = n_bytes / 2**30
    return f"{gib:,.2f}".rstrip("0").rstrip(".") if gib >= 0.01 or gib == 0 else f"{gib:.1g}"


def _power(power: int) -> str:
    """2 ** power bytes in words: 1 KiB, 32 MiB."""
    names = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
    at = min(power // 10, len(names) - 1)
    return f"{2 ** (power - 10 * at):,} {names[at]}"
