"""MemoryExplorer: what a cache takes beside the weights, by the sizes that make it."""

import math
from collections.abc import Mapping
from typing import Any

import traitlets

from kvlab.roofline import HARDWARE, ModelShape
from kvlab.shapes import expect_count
from kvlab.sizes import FORMATS, Fit, Layers, Price, fit, load_config, price_layers, read_layers
from kvlab.style import COLORS
from kvlab.widgets.explorer import MARGIN, Explorer, Scene, control, expect_option
from kvlab.widgets.twin import Px, Refused, plural

OPTIONS = {
    "n_layers": (1, 2, 4, 8, 12, 16, 24, 28, 30, 32, 36, 40, 48, 64, 80, 96, 126),
    "n_kv_heads": (1, 2, 3, 4, 8, 16, 32, 64, 128),
    "head_dim": (32, 64, 80, 96, 128, 192, 256),
    "batch": tuple(2**i for i in range(11)),
    "seq_len": tuple(2**i for i in range(7, 21)),
}
LABELS = {"n_layers": "layers", "n_kv_heads": "KV heads", "head_dim": "head width", "batch": "sequences"}
LABELS |= {"seq_len": "tokens each"}
OF_THE_MODEL = ("n_layers", "n_kv_heads", "head_dim")
CHART = {"left": 74, "top": 128, "width": 560, "height": 150}


class MemoryExplorer(Explorer):
    """Bytes of the cache beside the weights and a GPU's memory, while its sizes are changed.

    The weights stay those of the model it starts from: other layers or heads change the cache alone. The cache is
    priced as `kvlab.sizes.price` prices it: windows, latents and recurrent states included.

    Args:
        config: a model that comes with the package ("llama-3.1-8b") or any config.json as a dict.
        weight_bytes: of the model; None prices its parameters at 16 bits, which a plain decoder's config tells.
        device: a name of `kvlab.roofline.HARDWARE`.
        batch, seq_len: sequences, and tokens cached for each, to begin with.

    Attributes:
        n_layers, n_kv_heads, head_dim: 0 where the layers of the model have no one such number; it stays 0 then.
        dtype: of keys and values, a name of `kvlab.sizes.FORMATS`.
        batch, seq_len, device: all are settable, also to values that the controls do not offer.

    Raises:
        ValueError: a config that is not understood, a size below 1, no such device, weights that cannot be told.

    >>> MemoryExplorer("llama-3.1-8b", seq_len=8192)
    Cache of 1 sequence x 8,192 tokens, 32 layers x 8 KV heads x 128, f16: 131,072 bytes a token, 1 GiB. With weights \
of 14.96 GiB: 15.96 of the 74.51 GiB of an H100 SXM. The cache is larger than the weights from 122,533 tokens on; 59 \
sequences of 8,192 tokens fit.
    """

    title = "What the cache takes"
    height = 322
    arrows = ("seq_len", "batch")
    n_layers = traitlets.Int(0).tag(sync=True, draws=True)
    n_kv_heads = traitlets.Int(0).tag(sync=True, draws=True)
    head_dim = traitlets.Int(0).tag(sync=True, draws=True)
    dtype = traitlets.Unicode("f16").tag(sync=True, draws=True)
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
        self._layers = read_layers(fields)
        self.weight_bytes = expect_count("weight_bytes", _weights(fields) if weight_bytes is None else weight_bytes)
        groups = [group for group in self._layers.groups if group.kind != "recurrent"]
        pairs = [group for group in groups if group.kind not in ("latent", "index")]  # a key and a value per KV head
        same = len(pairs) == len(groups)
        one_number = {
            "n_layers": groups[0].n_layers if len(self._layers.groups) == 1 and groups else 0,
            "n_kv_heads": _only({group.kv_heads for group in pairs}) if same else 0,
            "head_dim": _only({width for group in pairs for width in (group.k_width, group.v_width)}) if same else 0,
        }
        self._free = {name: size for name, size in one_number.items() if size}
        super().__init__(**self._free, batch=batch, seq_len=seq_len, device=device)

    def priced(self, **changed: Any) -> Price:
        """The price of the present state, or of one with some traits changed."""
        at = {name: changed.get(name, getattr(self, name)) for name in (*self._free, "dtype", "batch", "seq_len")}
        fields = {"n_layers": ("n_layers",), "n_kv_heads": ("kv_heads",), "head_dim": ("k_width", "v_width")}
        given = {field: at[name] for name in self._free for field in fields[name]}
        groups = tuple(g if g.kind == "recurrent" else g._replace(**given) for g in self._layers.groups)
        layers = self._layers._replace(groups=groups)
        return price_layers(layers, at["seq_len"], at["batch"], at["dtype"], at["dtype"])

    @property
    def per_token(self) -> int:
        """Bytes that one more token of one sequence takes; fewer once windows are full."""
        return self.priced().bytes_per_token

    @property
    def cache_bytes(self) -> int:
        """Bytes of the whole cache, recurrent states included where their size is known."""
        need = self.priced()
        return need.kv_bytes + (need.state_bytes or 0)

    @property
    def memory_bytes(self) -> int:
        """Of the chosen device."""
        return int(HARDWARE[self.device].memory_bytes)

    @property
    def fit(self) -> Fit:
        """What fits on the device beside the weights."""
        return fit(self.priced(), self.weight_bytes, self.memory_bytes)

    @property
    def crossover(self) -> int | None:
        """The context at which the cache of the batch becomes larger than the weights; None where it never does."""
        return self.fit.crossover_tokens

    @property
    def alt(self) -> str:
        """The sizes, the bytes, and how they stand to the weights and the device."""
        total = self.weight_bytes + self.cache_bytes
        over = "" if total <= self.memory_bytes else f" {_gib(total - self.memory_bytes)} GiB too much."
        article = "an" if self.device[0] in "AHLR" else "a"
        found = self.fit
        crosses = "never larger than the weights"
        if found.crossover_tokens is not None:
            crosses = f"larger than the weights from {plural(found.crossover_tokens, 'token')} on"
        n_fit = "any number of sequences" if found.sequences is None else plural(found.sequences, "sequence")
        unknown = "" if self._layers.state_known else " The state of the recurrent layers is not in it: size unknown."
        kinds = _kinds(self.priced().layers)
        return (
            f"Cache of {plural(self.batch, 'sequence')} x {plural(self.seq_len, 'token')}, {kinds}, "
            f"{self.dtype}: {self._grows()}, {_gib(self.cache_bytes)} GiB. "
            f"With weights of {_gib(self.weight_bytes)} GiB: {_gib(total)} of the {_gib(self.memory_bytes)} GiB "
            f"of {article} {self.device}.{over} The cache is {crosses}; "
            f"{n_fit} of {plural(self.seq_len, 'token')} fit.{unknown}"
        )

    def _grows(self) -> str:
        """Bytes a token where every token adds as many; else what the next one adds."""
        plain = all(group.kind in ("full", "latent", "index") for group in self._layers.groups)
        return f"{self.per_token:,} bytes a token" if plain else f"one more token of one adds {self.per_token:,} bytes"

    def _said(self) -> str:
        return self.alt

    def _controls(self) -> list[dict[str, Any]]:
        made = []
        for name, label in LABELS.items():
            at = getattr(self, name)
            if at:
                options = sorted({*OPTIONS[name], *([at] if name in OF_THE_MODEL else [])})
                options = [n for n in options if name != "head_dim" or n % FORMATS[self.dtype].values == 0]
                made.append(control(name, label, options, f"{at:,}", [f"{n:,}" for n in options]))
        dtypes = [name for name in FORMATS if self._refusal(dtype=name) is None]
        made.append(control("dtype", "stored as", dtypes, self.dtype, kind="select"))
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
        need, crossover = self.priced(), self.crossover
        cached = [need.sequences * need.kv_bytes_at(n) + (need.state_bytes or 0) for n in contexts]
        least = min(max(1, cached[0]), max(1, self.weight_bytes))
        most = max(cached[-1], self.memory_bytes, self.weight_bytes)
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
        points = [(x_of(n), y_of(n_bytes)) for n, n_bytes in zip(contexts, cached, strict=True)]
        scene.curve(points, COLORS["cached"], 3)
        x, y = points[len(points) // 4]
        scene.text(x + 8, y + 16, "cache", 11)
        if crossover is not None and contexts[0] <= crossover <= contexts[-1]:
            at = x_of(crossover), y_of(self.weight_bytes)
            scene.curve([at, (at[0], bottom)], "quiet", 1, "2 3")
            scene.mark(*at, COLORS["new"], "square", 4)
        scene.mark(x_of(self.seq_len), y_of(self.cache_bytes), COLORS["cached"])
        crosses = "no crossover" if crossover is None else f"crossover at {crossover:,} tokens (square)"
        words = f"{crosses}; now {self.seq_len:,} (round)"
        scene.text(right, bottom + 34, words, 11, "end")

    @traitlets.validate("n_layers", "n_kv_heads", "head_dim", "batch", "seq_len")
    def _expect_size(self, proposal: dict[str, Any]) -> int:
        name, size = proposal["trait"].name, int(proposal["value"])
        if name in OF_THE_MODEL and name not in self._free:
            raise Refused(f"{name}: the layers of this model have no one such number: {_kinds(self._layers)}")
        return self._expect_priced(name, size)

    @traitlets.validate("dtype")
    def _expect_dtype(self, proposal: dict[str, Any]) -> str:
        return str(self._expect_priced("dtype", proposal["value"]))

    def _expect_priced(self, name: str, value: Any) -> Any:
        if name != "dtype" and value < 1:
            raise Refused(f"{name}: expected a whole number of at least 1, got {value}")
        refusal = self._refusal(**{name: value})
        if refusal:
            raise Refused(f"{name}: {refusal}")
        return value

    def _refusal(self, **changed: Any) -> str | None:
        """Why the cache cannot be priced with this change: a format's blocks that do not fit a width, say."""
        try:
            self.priced(**changed)
        except ValueError as error:
            return str(error)
        return None

    @traitlets.validate("device")
    def _expect_device(self, proposal: dict[str, Any]) -> str:
        return str(expect_option("device", proposal["value"], list(HARDWARE)))


def _kinds(layers: Layers) -> str:
    """The layers in words: 18 sliding layers of 128 tokens x 8 KV heads x 64 and 18 full layers ..."""
    said = []
    for g in layers.groups:
        kind = "" if len(layers.groups) == 1 and g.kind == "full" else f"{g.kind} "
        words = f"{g.n_layers:,} {kind}layer" + ("" if g.n_layers == 1 else "s")
        if g.holds is not None:
            words += f" of {plural(g.holds, 'token')}"
        if g.kind in ("latent", "index"):
            words += f" x {g.k_width}"
        elif g.kind != "recurrent":
            width = f"{g.k_width}" if g.k_width == g.v_width else f"({g.k_width} + {g.v_width})"
            words += f" x {plural(g.kv_heads, 'KV head')} x {width}"
        said.append(words)
    return " and ".join(said) or "no layer that keeps anything"


def _weights(fields: Mapping[str, Any]) -> int:
    """Bytes of a model's parameters at 16 bits."""
    try:
        return 2 * (fields.get("_parameters") or ModelShape.from_config(fields).n_params)
    except ValueError as error:
        raise ValueError(f"weight_bytes: this config does not tell them ({error}): pass weight_bytes=") from None


def _only(sizes: set[int]) -> int:
    """The one number in a set, or 0."""
    return next(iter(sizes)) if len(sizes) == 1 else 0


def _gib(n_bytes: int) -> str:
    """In GiB, to a hundredth and no trailing zeros; more places where it would read 0."""
    gib = n_bytes / 2**30
    return f"{gib:,.2f}".rstrip("0").rstrip(".") if gib >= 0.01 or gib == 0 else f"{gib:.1g}"


def _power(power: int) -> str:
    """2 ** power bytes in words: 1 KiB, 32 MiB."""
    names = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
    at = min(power // 10, len(names) - 1)
    return f"{2 ** (power - 10 * at):,} {names[at]}"
