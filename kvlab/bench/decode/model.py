"""The model that all decoders of one run share: one set of float32 weights in NumPy, real or random."""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from kvlab.roofline import ModelShape

SMOLLM2 = ModelShape(
    n_layers=30, d_model=576, n_heads=9, n_kv_heads=3, head_dim=64, d_ff=1536, vocab_size=49152, tied=True
)
TINY = ModelShape(n_layers=2, d_model=48, n_heads=6, n_kv_heads=2, head_dim=8, d_ff=80, vocab_size=96, tied=True)
SHAPES = {"smollm2-135m": SMOLLM2, "tiny": TINY}
MAX_POSITIONS = 8192


@dataclass(frozen=True)
class Model:
    """A Llama-shaped model. `weights` has the attributes of kvlab.llama.weights.Weights, matrices as (out, in)."""

    name: str
    shape: ModelShape
    weights: Any
    rope_base: float = 100000.0
    norm_eps: float = 1e-5
    why_random: str = ""  # what kept the real weights away, if anything did
    max_positions: int = field(default=MAX_POSITIONS)

    @property
    def frequencies(self) -> np.ndarray:
        """Radians a token by which each pair of channels turns."""
        return self.rope_base ** (-np.arange(0, self.shape.head_dim, 2) / self.shape.head_dim)


def find(shape_name: str) -> Model:
    """The real SmolLM2-135M where `make model` has put it; else random weights of its shape, with the reason."""
    if shape_name != "smollm2-135m":
        return random_model(SHAPES[shape_name], f"random {shape_name}")
    try:
        from kvlab.llama import load

        llama = load()
    except (ImportError, OSError, ValueError) as error:  # a bare machine, no weights, or damaged ones
        return random_model(SMOLLM2, f"random {shape_name}", " ".join(str(error).split()))
    c = llama.config
    names = ("n_layers", "d_model", "n_heads", "n_kv_heads", "head_dim", "d_ff", "vocab_size", "tied")
    shape = ModelShape(**{name: getattr(c, name) for name in names})
    return Model("SmolLM2-135M-Instruct", shape, llama.weights, c.rope_base, c.norm_eps, max_positions=c.max_positions)


def random_model(shape: ModelShape, name: str = "random", why: str = "", seed: int = 0) -> Model:
    """Weights drawn so that activations keep their size: what is timed is the same, what is said is noise."""
    random = np.random.default_rng(seed)

    def matrix(n_out: int, n_in: int) -> np.ndarray:
        w = random.standard_normal((n_out, n_in), dtype=np.float32)
        w *= np.float32(n_in**-0.5)
        return w

    def gain() -> np.ndarray:
        return random.uniform(0.5, 1.5, shape.d_model).astype(np.float32)

    s = shape
    q, kv = s.n_heads * s.head_dim, s.n_kv_heads * s.head_dim
    embed = matrix(s.vocab_size, s.d_model)
    parts: dict[str, Callable[[], np.ndarray]] = {
        "attn_norm": gain,
        "qkv": lambda: matrix(q + 2 * kv, s.d_model),
        "wo": lambda: matrix(s.d_model, q),
        "mlp_norm": gain,
        "gate_up": lambda: matrix(2 * s.d_ff, s.d_model),
        "w_down": lambda: matrix(s.d_model, s.d_ff),
    }
    layers = [SimpleNamespace(**{part: make() for part, make in parts.items()}) for _ in range(s.n_layers)]
    head = embed if s.tied else matrix(s.vocab_size, s.d_model)
    return Model(name, s, SimpleNamespace(embed=embed, layers=layers, final_norm=gain(), head=head), why_random=why)
