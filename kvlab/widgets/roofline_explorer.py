"""RooflineExplorer: where prefill and decode of one model stand under a device's roof."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import traitlets

from kvlab.roofline import (
    HARDWARE,
    Hardware,
    ModelShape,
    attainable_flops_per_s,
    forward_bytes,
    forward_flops,
    ridge_point,
)
from kvlab.sizes import cache_bytes, load_config
from kvlab.style import COLORS
from kvlab.widgets.explorer import MARGIN, Explorer, Scene, control, expect_option
from kvlab.widgets.twin import Px, Refused, plural

BATCHES, CONTEXTS = tuple(2**i for i in range(11)), tuple(2**i for i in range(7, 18))
CHART = {"left": 86, "top": 42, "width": 560, "height": 220}
DECADES = (-1, 6)  # of FLOPs a byte


@dataclass(frozen=True)
class Pass:
    """One forward pass on a device: what it computes and reads at least, and the least time for both."""

    flops: int
    n_bytes: float | int
    device: Hardware

    @property
    def intensity(self) -> float:
        """FLOPs a byte."""
        return self.flops / self.n_bytes

    @property
    def by_memory(self) -> bool:
        """Whether reading takes longer than computing."""
        return self.intensity < ridge_point(self.device.bf16_flops_per_s, self.device.bandwidth_bytes_per_s)

    @property
    def flops_per_s(self) -> float:
        """At most: the roof at this intensity."""
        d = self.device
        return float(attainable_flops_per_s(self.intensity, d.bf16_flops_per_s, d.bandwidth_bytes_per_s))

    @property
    def floor_ms(self) -> float:
        """At least: the longer of reading and computing."""
        return 1000 * self.flops / self.flops_per_s


class RooflineExplorer(Explorer):
    """The roofline of a device with two points: the prefill of the prompts, and one decode step after them.

    Both are bounds at 16 bits from `kvlab.roofline`, with the peak and the bandwidth of the data sheet: no run is
    faster, most are slower.

    Args:
        model: a model that comes with the package ("llama-3.1-8b"), a config.json as a dict, or a ModelShape.
        device: a name of `kvlab.roofline.HARDWARE`.
        batch, seq_len: sequences, and tokens of each, to begin with.
        measured: a device of your own as a `Hardware`, such as one filled with what `make bench` measured; it is
            offered as "measured".

    Attributes:
        device, batch, seq_len: settable.

    Raises:
        ValueError: a config that is no plain decoder, a size below 1, no such device.

    >>> RooflineExplorer("llama-3.1-8b", seq_len=1024)
    H100 SXM, ridge at 295 FLOPs a byte; 1 sequence of 1,024 tokens. Prefill: 14.6 TFLOP over 15.1 GB, 962 FLOPs a \
byte, bound by arithmetic, at least 14.7 ms. Decode step: 15.5 GFLOP over 15.1 GB, 1.03 FLOPs a byte, bound by memory, \
at least 4.52 ms.
    """

    title = "Prefill and decode under the roofline"
    height = 322
    arrows = ("seq_len", "batch")
    device = traitlets.Unicode("H100 SXM").tag(sync=True, draws=True)
    batch = traitlets.Int(1).tag(sync=True, draws=True)
    seq_len = traitlets.Int(1).tag(sync=True, draws=True)

    def __init__(
        self,
        model: str | Mapping[str, Any] | ModelShape = "llama-3.1-8b",
        device: str = "H100 SXM",
        batch: int = 1,
        seq_len: int = 1024,
        measured: Hardware | None = None,
    ) -> None:
        if not isinstance(model, ModelShape):
            model = ModelShape.from_config(load_config(model) if isinstance(model, str) else model)
        self.model = model
        self._hardware = HARDWARE | ({"measured": measured} if measured else {})
        super().__init__(device=device, batch=batch, seq_len=seq_len)

    @property
    def prefill(self) -> Pass:
        """All tokens of all sequences at once, into an empty cache."""
        flops = forward_flops(self.model, self.seq_len, batch=self.batch)
        return Pass(flops, self._bytes(), self._hardware[self.device])

    @property
    def decode(self) -> Pass:
        """One more token for each sequence; the cache holds seq_len tokens with it."""
        flops = forward_flops(self.model, 1, self.seq_len - 1, batch=self.batch)
        return Pass(flops, self._bytes(), self._hardware[self.device])

    def _bytes(self) -> float | int:
        return forward_bytes(self.model, self.seq_len, self.batch)

    @property
    def alt(self) -> str:
        """Both passes in FLOPs, bytes and least time, and what bounds them."""
        hardware = self._hardware[self.device]
        ridge = ridge_point(hardware.bf16_flops_per_s, hardware.bandwidth_bytes_per_s)
        said = f"{self.device}, ridge at {ridge:,.0f} FLOPs a byte; {plural(self.batch, 'sequence')} of "
        said += f"{plural(self.seq_len, 'token')}. {_say('Prefill', self.prefill)} {_say('Decode step', self.decode)}"
        return said + self._too_large()

    def _too_large(self) -> str:
        shape = self.model
        kv = cache_bytes(self.batch, self.seq_len, shape.n_layers, shape.n_kv_heads, shape.head_dim, 2)
        needed, there = 2 * shape.n_params + kv, self._hardware[self.device].memory_bytes
        if needed <= there:
            return ""
        return f" It does not fit: {needed / 1e9:,.1f} GB of weights and cache, {there / 1e9:,.1f} GB of memory."

    def _said(self) -> str:
        return self.alt

    def _controls(self) -> list[dict[str, Any]]:
        contexts, batches = sorted({*CONTEXTS, self.seq_len}), sorted({*BATCHES, self.batch})
        return [
            control("seq_len", "tokens each", contexts, self.seq_len, [f"{n:,}" for n in contexts]),
            control("batch", "sequences", batches, self.batch, [f"{n:,}" for n in batches]),
            control("device", "on", list(self._hardware), self.device, kind="select"),
        ]

    def _scene(self) -> Scene:
        scene, c = Scene(), CHART
        hardware = self._hardware[self.device]
        peak, bandwidth = hardware.bf16_flops_per_s, hardware.bandwidth_bytes_per_s
        top = math.ceil(math.log10(peak * 1.5))
        low = min(top - 5, math.floor(math.log10(self.decode.flops_per_s)))

        def x_of(intensity: Px) -> float:
            share = (math.log10(intensity) - DECADES[0]) / (DECADES[1] - DECADES[0])
            return c["left"] + c["width"] * min(1.0, max(0.0, share))

        def y_of(flops_per_s: Px) -> float:
            return c["top"] + c["height"] * (1 - min(1.0, max(0.0, (math.log10(flops_per_s) - low) / (top - low))))

        right, bottom = c["left"] + c["width"], c["top"] + c["height"]
        scene.text(MARGIN, 20, f"{self.device}: at most", 13, bold=True)
        scene.text(c["left"], 36, "FLOP/s", 11, fill="quiet")
        scene.text(right, 36, f"peak {_si(peak)}FLOP/s", 11, "end")
        for power in range(low, top + 1):
            scene.curve([(c["left"], y_of(10**power)), (right, y_of(10**power))], "empty", 1)
            scene.text(c["left"] - 6, y_of(10**power) + 4, _si(10.0**power), 11, "end")
        for power in range(DECADES[0], DECADES[1] + 1):
            scene.text(x_of(10.0**power), bottom + 16, f"{10.0**power:,.10g}", 11, "middle")
        scene.text(right, bottom + 32, "FLOPs a byte read", 11, "end", fill="quiet")
        ridge = ridge_point(peak, bandwidth)
        start = max(10.0 ** DECADES[0], 10.0**low / bandwidth)
        roof = [(x_of(start), y_of(start * bandwidth)), (x_of(ridge), y_of(peak)), (right, y_of(peak))]
        scene.curve(roof, "ink", 2.5)
        scene.curve([(x_of(ridge), y_of(peak)), (x_of(ridge), bottom)], "quiet", 1, "3 3")
        scene.text(x_of(ridge), y_of(peak) - 7, f"ridge {ridge:,.0f}", 11, "middle", fill="quiet")
        scene.text(c["left"] + 8, c["top"] + 14, f"bandwidth {_si(bandwidth)}B/s", 11)
        for name, at, colour, kind in (
            ("prefill", self.prefill, COLORS["new"], "square"),
            ("decode", self.decode, COLORS["cached"], "round"),
        ):
            x, y = x_of(at.intensity), y_of(at.flops_per_s)
            scene.curve([(x, y), (x, bottom)], colour, 2, "2 3")
            scene.mark(x, y, colour, kind, 6)
            anchor = "end" if x > right - 90 else "start"
            scene.text(x + (10 if anchor == "start" else -10), y + 22, name, 12, anchor, bold=True)
        for i, (name, at) in enumerate((("square: prefill", self.prefill), ("round: decode step", self.decode))):
            bound = "memory" if at.by_memory else "arithmetic"
            words = f"{name}, {_figure(at.intensity)} FLOPs a byte, bound by {bound}, at least {_ms(at.floor_ms)}"
            scene.text(MARGIN, bottom + 38 + 16 * i, words, 11)
        return scene

    @traitlets.validate("batch", "seq_len")
    def _expect_size(self, proposal: dict[str, Any]) -> int:
        name, size = proposal["trait"].name, int(proposal["value"])
        if size < 1:
            raise Refused(f"{name}: expected a whole number of at least 1, got {size}")
        return size

    @traitlets.validate("device")
    def _expect_device(self, proposal: dict[str, Any]) -> str:
        return str(expect_option("device", proposal["value"], list(self._hardware)))


def _say(name: str, at: Pass) -> str:
    bound = "memory" if at.by_memory else "arithmetic"
    return (
        f"{name}: {_si(at.flops)}FLOP over {_si(at.n_bytes)}B, {_figure(at.intensity)} FLOPs a byte, bound by {bound}, "
        f"at least {_ms(at.floor_ms)}."
    )


def _figure(x: float) -> str:
    return f"{x:,.0f}" if x >= 100 else f"{x:.3g}"


def _si(x: float | int) -> str:
    """Three figures and a power of ten in words: "15.1 G".

    >>> _si(15.1234e9), _si(990e12), _si(1000.0)
    ('15.1 G', '990 T', '1 k')
    """
    for size, name in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if x >= 0.9995 * size:
            return f"{x / size:.3g} {name}"
    return f"{x:.3g} "


def _ms(ms: float) -> str:
    return f"{_figure(ms)} ms" if ms < 10_000 else f"{_figure(ms / 1000)} s"
