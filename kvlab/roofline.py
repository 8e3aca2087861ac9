"""FLOPs, bytes and the least time they can take: what one forward pass must compute and read, and what bounds it.

A floor is a bound, not a forecast: no run on that memory is faster, most are slower. A decode step of one sequence
over n_past tokens is `n_new=1`; a prefill is `n_past=0`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvlab.shapes import expect_count, expect_groups
from kvlab.sizes import cache_bytes, cache_shape

Number = int | float


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a Llama-shaped decoder: RMSNorm, grouped-query attention, SwiGLU, no biases.

    >>> from kvlab.sizes import load_config
    >>> llama = ModelShape.from_config(load_config("llama-3.1-8b"))
    >>> llama.n_params, llama.n_read_params
    (8030261248, 7504924672)
    """

    n_layers: int
    d_model: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    d_ff: int
    vocab_size: int
    tied: bool = False  # the output head is the embedding table

    def __post_init__(self) -> None:
        for name in ("n_layers", "d_model", "n_heads", "n_kv_heads", "head_dim", "d_ff", "vocab_size"):
            expect_count(name, getattr(self, name), 1)
        expect_groups(self.n_heads, self.n_kv_heads)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "ModelShape":
        """The shape of a Llama-like model from its config.json.

        Args:
            config: a Hugging Face config.json as a dict.

        Raises:
            ValueError: a field is missing, or the model is no plain decoder (see `kvlab.sizes.cache_shape`).
        """
        cache = cache_shape(config)
        fields = ("hidden_size", "num_attention_heads", "intermediate_size", "vocab_size")
        missing = [name for name in fields if config.get(name) is None]
        if missing:
            raise ValueError(f"config: {', '.join(missing)} missing, the FLOPs and bytes of a model need them")
        d_model, n_heads, d_ff, vocab_size = (config[name] for name in fields)
        return cls(
            n_layers=cache.n_layers,
            d_model=d_model,
            n_heads=n_heads,
            n_kv_heads=cache.n_kv_heads,
            head_dim=cache.head_dim,
            d_ff=d_ff,
            vocab_size=vocab_size,
            tied=bool(config.get("tie_word_embeddings")),
        )

    @property
    def n_layer_matrix_params(self) -> int:
        """Numbers in the matrices of one layer: q, k, v, o and the three of SwiGLU."""
        attention = 2 * self.d_model * self.head_dim * (self.n_heads + self.n_kv_heads)
        return attention + 3 * self.d_model * self.d_ff

    @property
    def n_embedding_params(self) -> int:
        """Numbers in the embedding table, which is the size of the output head too."""
        return self.vocab_size * self.d_model

    @property
    def n_params(self) -> int:
        """Numbers in the whole model."""
        return self.n_read_params + (0 if self.tied else self.n_embedding_params)

    @property
    def n_read_params(self) -> int:
        """Numbers that a decode step reads: all but an untied embedding table, of which it looks up one row a token."""
        norms = (2 * self.n_layers + 1) * self.d_model
        return self.n_layers * self.n_layer_matrix_params + norms + self.n_embedding_params


def forward_flops(shape: ModelShape, n_new: int, n_past: int = 0, batch: int = 1, n_logits: int = 1) -> int:
    """Multiplications and additions of one forward pass: 2 a weight and token, 4 a score entry and channel.

    A prefill is `forward_flops(shape, n_prompt)`, a decode step `forward_flops(shape, 1, n_past)`. Norms, softmax and
    activations are left out (under 1 % at real sizes), and masked score entries are not counted.

    Args:
        shape: of the model.
        n_new: tokens that go in, a sequence.
        n_past: tokens already in the cache, a sequence.
        batch: sequences.
        n_logits: positions that the output head is applied to, a sequence: 1 when only the next token is wanted.

    Raises:
        ValueError: negative counts, or more logits than new tokens.

    >>> toy = ModelShape(n_layers=2, d_model=32, n_heads=4, n_kv_heads=2, head_dim=8, d_ff=48, vocab_size=64)
    >>> forward_flops(toy, n_new=1), forward_flops(toy, n_new=1, n_past=100)
    (35072, 60672)
    """
    for name, value in (("n_new", n_new), ("n_past", n_past), ("batch", batch), ("n_logits", n_logits)):
        expect_count(name, value)
    if n_logits > n_new:
        raise ValueError(f"forward_flops: {n_logits} logits cannot come from {n_new} new tokens")
    scores = n_new * n_past + n_new * (n_new + 1) // 2
    matrices = 2 * shape.n_layers * shape.n_layer_matrix_params * n_new
    attention = 4 * shape.n_layers * shape.n_heads * shape.head_dim * scores
    return batch * (matrices + attention + 2 * shape.n_embedding_params * n_logits)


def forward_bytes(
    shape: ModelShape, n_total: int, batch: int = 1, bytes_per_element: Number = 2, kv_bytes_per_element: Number = 2
) -> Number:
    """Bytes that one forward pass must read at least: every weight once, and the cache of every sequence.

    Weights are shared by the batch, the cache is not. Activations are left out: they stay in the processor's caches.

    Args:
        shape: of the model.
        n_total: rows in the cache a sequence, the new ones included; 0 without a cache.
        batch: sequences.
        bytes_per_element: of a weight.
        kv_bytes_per_element: of a key or value.

    Raises:
        ValueError: negative counts, or an element of no bytes.

    >>> toy = ModelShape(n_layers=2, d_model=32, n_heads=4, n_kv_heads=2, head_dim=8, d_ff=48, vocab_size=64)
    >>> forward_bytes(toy, n_total=0), forward_bytes(toy, n_total=8)
    (35136, 36160)
    """
    _expect_positive("bytes_per_element", bytes_per_element)
    kv = cache_bytes(batch, n_total, shape.n_layers, shape.n_kv_heads, shape.head_dim, kv_bytes_per_element)
    return shape.n_read_params * bytes_per_element + kv


def decode_floor_ms(weight_bytes: Number, kv_bytes: Number, bandwidth_bytes_per_s: Number) -> float:
    """The least time of a decode step that reads every weight and the whole cache once, in milliseconds.

    1000 * (weight_bytes + kv_bytes) / bandwidth_bytes_per_s

    Args:
        weight_bytes: of the weights that are read, not looked up.
        kv_bytes: of the cache, all sequences.
        bandwidth_bytes_per_s: of the memory that holds both; measured if it can be.

    Raises:
        ValueError: negative bytes, or a bandwidth that is not above 0.

    >>> decode_floor_ms(weight_bytes=10e9, kv_bytes=2e9, bandwidth_bytes_per_s=3e12)
    4.0
    """
    for name, value in (("weight_bytes", weight_bytes), ("kv_bytes", kv_bytes)):
        if not value >= 0:
            raise ValueError(f"{name}: expected 0 bytes or more, got {value}")
    _expect_positive("bandwidth_bytes_per_s", bandwidth_bytes_per_s)
    return 1000 * (weight_bytes + kv_bytes) / bandwidth_bytes_per_s


def ridge_point(peak_flops_per_s: Number, bandwidth_bytes_per_s: Number) -> float:
    """FLOPs a byte from which on arithmetic bounds and no longer memory. Williams, Waterman and Patterson 2009.

    >>> round(ridge_point(HARDWARE["H100 SXM"].bf16_flops_per_s, HARDWARE["H100 SXM"].bandwidth_bytes_per_s))
    295
    """
    _expect_positive("peak_flops_per_s", peak_flops_per_s)
    _expect_positive("bandwidth_bytes_per_s", bandwidth_bytes_per_s)
    return peak_flops_per_s / bandwidth_bytes_per_s


def attainable_flops_per_s(flops_per_byte: Number, peak_flops_per_s: Number, bandwidth_bytes_per_s: Number) -> Number:
    """The roofline: min(peak, intensity * bandwidth).

    >>> attainable_flops_per_s(2.0, peak_flops_per_s=1e12, bandwidth_bytes_per_s=1e11)
    200000000000.0
    """
    _expect_positive("flops_per_byte", flops_per_byte)
    _expect_positive("peak_flops_per_s", peak_flops_per_s)
    _expect_positive("bandwidth_bytes_per_s", bandwidth_bytes_per_s)
    return min(peak_flops_per_s, flops_per_byte * bandwidth_bytes_per_s)


@dataclass(frozen=True)
class Hardware:
    """What a data sheet promises of one GPU. bf16_flops_per_s is dense: half of what is printed "with sparsity"."""

    bf16_flops_per_s: float
    bandwidth_bytes_per_s: float
    memory_bytes: float
    source: str


HARDWARE = {
    "A100 80GB SXM": Hardware(
        312e12, 2.039e12, 80e9, "NVIDIA A100 80GB data sheet, SXM column: 312 TF dense (624 with sparsity), 2,039 GB/s"
    ),
    "H100 SXM": Hardware(
        989.5e12, 3.35e12, 80e9, "nvidia.com/en-us/data-center/h100, H100 SXM: 1,979 TFLOPS with sparsity, 3.35 TB/s"
    ),
    "H200 SXM": Hardware(
        989.5e12, 4.8e12, 141e9, "nvidia.com/en-us/data-center/h200, H200 SXM: 1,979 TFLOPS with sparsity, 4.8 TB/s"
    ),
    "B200 (HGX)": Hardware(
        2.25e15, 7.7e12, 180e9, "NVIDIA HGX B200 data sheet: 4.5 PFLOPS with sparsity, 180 GB, 7.7 TB/s a GPU"
    ),
    "L4": Hardware(121e12, 0.3e12, 24e9, "nvidia.com/en-us/data-center/l4: 242 TFLOPS with sparsity, 24 GB, 300 GB/s"),
    "RTX 4090": Hardware(
        165.2e12,
        1.008e12,
        24e9,
        "NVIDIA Ada GPU architecture whitepaper, appendix A: 165.2 TFLOPS dense with FP32 accumulate, 1,008 GB/s",
    ),
}


def _expect_positive(name: str, value: Number) -> None:
    if not value > 0:
        raise ValueError(f"{name}: expected a number above 0, got {value}")
