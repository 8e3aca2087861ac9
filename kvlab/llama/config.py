"""What a Llama checkpoint's config.json says, and by name what it may not say."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from kvlab.shapes import expect_count, expect_groups

# Fields that change the computation, and the one value this decoder computes; absent means that value too.
FIXED: dict[str, Any] = {
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "sliding_window": None,
    "quantization_config": None,
    "pretraining_tp": 1,
}


@dataclass(frozen=True)
class Llama3Rope:
    """`rope_scaling` of Llama 3: slow pairs turn `factor` times slower, fast ones as before, those between in part."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_positions: int


@dataclass(frozen=True)
class LlamaConfig:
    """Shape of a Llama-architecture decoder, in the words of the course."""

    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    d_model: int
    d_ff: int
    vocab_size: int
    max_positions: int
    rope_base: float
    norm_eps: float
    tied: bool
    rope_scaling: Llama3Rope | None = None

    def __post_init__(self) -> None:
        for name in ("n_layers", "n_heads", "n_kv_heads", "d_model", "d_ff", "vocab_size", "max_positions"):
            expect_count(name, getattr(self, name), 1)
        expect_groups(self.n_heads, self.n_kv_heads)
        if expect_count("head_dim", self.head_dim, 2) % 2:
            raise ValueError(f"head_dim must be even to be rotated in pairs, got {self.head_dim}")


def read_config(folder: Path) -> LlamaConfig:
    """Read config.json of a checkpoint folder, in the form Hugging Face gives it.

    Raises:
        ValueError: there is no such file or it is no JSON object; another architecture; a field that this decoder does
            not compute, by name.
    """
    path = folder / "config.json"
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(f"{folder}: expected a checkpoint folder with config.json, there is none") from None
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: expected a JSON object, got {error}") from None
    if not isinstance(fields, dict):
        raise ValueError(f"{path}: expected a JSON object, got {type(fields).__name__}")
    try:
        return from_hugging_face(fields)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def from_hugging_face(fields: dict[str, Any]) -> LlamaConfig:
    """A config.json of model_type llama as a LlamaConfig. ValueError names what is missing or not supported.

    >>> sizes = dict(num_hidden_layers=2, num_attention_heads=4, hidden_size=32, intermediate_size=48, vocab_size=64)
    >>> config = from_hugging_face(dict(model_type="llama", **sizes))
    >>> config.n_kv_heads, config.head_dim, config.tied
    (4, 8, False)
    """
    if fields.get("model_type") != "llama":
        raise ValueError(f'model_type: expected "llama", got {fields.get("model_type")!r}: kvlab.llama runs no other')
    for name, value in FIXED.items():
        if fields.get(name) not in (None, value):
            raise ValueError(f"{name} {fields[name]!r} is not supported, expected {value!r}")
    n_heads, d_model = _count(fields, "num_attention_heads"), _count(fields, "hidden_size")
    rope = _rope(fields)
    return LlamaConfig(
        n_layers=_count(fields, "num_hidden_layers"),
        n_heads=n_heads,
        n_kv_heads=_count(fields, "num_key_value_heads", n_heads),
        head_dim=_count(fields, "head_dim", d_model // n_heads),
        d_model=d_model,
        d_ff=_count(fields, "intermediate_size"),
        vocab_size=_count(fields, "vocab_size"),
        max_positions=_count(fields, "max_position_embeddings", 2048),
        rope_base=_positive(rope, "rope_theta", 10000.0),
        norm_eps=_positive(fields, "rms_norm_eps", 1e-6),
        tied=_field(fields, "tie_word_embeddings", False, _flag),
        rope_scaling=_scaling(rope),
    )


def rope_frequencies(config: LlamaConfig) -> Float[np.ndarray, "half"]:
    """Radians a token by which each pair of channels turns, float64; Llama 3's scaling included.

    base ** (-2 i / head_dim). With scaling, a pair whose wavelength exceeds original_max_positions / low_freq_factor
    turns `factor` times slower, one below original_max_positions / high_freq_factor as before, and between them the
    share of each runs linearly in the number of turns. Llama 3.1's release, reference code, apply_scaling.
    """
    plain = config.rope_base ** (-np.arange(0, config.head_dim, 2) / config.head_dim)
    scaling = config.rope_scaling
    if scaling is None:
        return plain
    turns = scaling.original_max_positions * plain / (2 * np.pi)  # in the context the model was first trained with
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return kept * plain + (1 - kept) * plain / scaling.factor


def _rope(fields: dict[str, Any]) -> dict[str, Any]:
    """Everything about RoPE in one dict: newer files have rope_parameters, older ones rope_theta and rope_scaling."""
    own = {"rope_theta": fields["rope_theta"]} if fields.get("rope_theta") is not None else {}
    for name in ("rope_scaling", "rope_parameters"):
        nested = fields.get(name)
        if nested is not None and not isinstance(nested, dict):
            raise ValueError(f"{name}: expected an object, got {nested!r}")
        own |= nested or {}
    if (share := fields.get("partial_rotary_factor", own.get("partial_rotary_factor"))) not in (None, 1):
        raise ValueError(f"partial_rotary_factor {share!r} is not supported, expected 1")
    return own


def _scaling(rope: dict[str, Any]) -> Llama3Rope | None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return None
    if kind != "llama3":
        raise ValueError(f'rope_scaling of type {kind!r} is not supported, expected "llama3" or none')
    low, high = _positive(rope, "low_freq_factor"), _positive(rope, "high_freq_factor")
    if not low < high:
        raise ValueError(f"rope_scaling: expected low_freq_factor below high_freq_factor, got {low} and {high}")
    return Llama3Rope(_positive(rope, "factor"), low, high, _count(rope, "original_max_position_embeddings"))


def _count(fields: dict[str, Any], name: str, default: int | None = None) -> int:
    return _field(fields, name, default, lambda value: expect_count(name, value, 1))


def _positive(fields: dict[str, Any], name: str, default: float | None = None) -> float:
    def check(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
            raise ValueError(f"{name}: expected a positive number, got {value!r}")
        return float(value)

    return _field(fields, name, default, check)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"tie_word_embeddings: expected true or false, got {value!r}")
    return value


def _field(fields: dict[str, Any], name: str, default: Any, check: Callable[[Any], Any]) -> Any:
    """A field, absent and null being one; the default where there is one."""
    value = fields.get(name)
    if value is None:
        value = default
    if value is None:
        raise ValueError(f"{name} is missing")
    return check(value)
