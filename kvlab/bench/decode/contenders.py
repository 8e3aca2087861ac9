"""What is timed: one class a kind of decoder, all answering to `turn` and `greedy`. The course's own are here."""

import time
from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from kvlab.bench.decode.lean import LeanDecoder
from kvlab.bench.decode.model import Model
from kvlab.roofline import forward_bytes

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


class Unavailable(Exception):
    """A decoder that cannot run here, and why, in one line."""


class Contender(ABC):
    """A decoder of one model with a cache, as the benchmark sees it.

    name, dtype: of its rows; kv_bytes: of one stored number, where it differs from a weight's.
    """

    name: str
    dtype: str
    kv_bytes: int

    def __init__(self, model: Model, dtype: str, max_len: int) -> None:
        self.model, self.dtype, self.max_len = model, dtype, max_len
        self.kv_bytes = BYTES[dtype]

    @abstractmethod
    def rewind(self, n_held: int) -> None:
        """Let the cache hold n_held tokens, whichever they are."""

    @abstractmethod
    def step(self) -> int:
        """Decode one token: feed any token, return the most likely next one."""

    @abstractmethod
    def greedy(self, ids: np.ndarray, n_new: int) -> list[int]:
        """The n_new most likely tokens after ids, from an empty cache."""

    def turn(self, context: int, n_steps: int) -> list[float]:
        """Seconds of each of n_steps steps, the last of which ends with `context` tokens in the cache.

        One step more goes first and is not counted: it wakes this library's threads and refills the caches.
        """
        self.rewind(context - n_steps - 1)
        times_s = []
        for _ in range(n_steps + 1):
            start = time.perf_counter()
            self.step()
            times_s.append(time.perf_counter() - start)
        return times_s[1:]

    def bytes_per_token(self, context: int) -> int:
        """Weights and cache that one step reads, in bytes: the floor's numerator."""
        return int(forward_bytes(self.model.shape, context, 1, BYTES[self.dtype], self.kv_bytes))


class Lean(Contender):
    """`LeanDecoder`."""

    name = "kvlab-lean"

    def __init__(self, model: Model, dtype: str, max_len: int) -> None:
        super().__init__(model, dtype, max_len)
        self.kv_bytes = 4  # activations and cache are float32 beside weights in either format
        try:
            self.decoder = LeanDecoder(model, dtype, max_len)
        except (RuntimeError, AttributeError) as error:
            raise Unavailable(" ".join(str(error).split())[:200]) from None

    def rewind(self, n_held: int) -> None:
        self.decoder.length = n_held

    def step(self) -> int:
        return int(self.decoder.step(1).argmax())

    def greedy(self, ids: np.ndarray, n_new: int) -> list[int]:
        return self.decoder.greedy(ids, n_new)


class Readable(Contender):
    """`kvlab.llama`, the decoder that lesson 13 shows, on the course's static cache. NumPy, float32."""

    name = "kvlab-llama"

    def __init__(self, model: Model, dtype: str, max_len: int) -> None:
        super().__init__(model, dtype, max_len)
        try:
            from kvlab.caches import StaticCache
            from kvlab.llama import Llama
        except ImportError as error:  # a bare machine: the course's modules carry jaxtyping signatures
            raise Unavailable(f"the course's modules do not load: {error}") from None
        s = model.shape
        self.llama = Llama(llama_config(model), llama_weights(model))
        self.caches = self.llama.make_caches(lambda: StaticCache(s.n_kv_heads, max_len, s.head_dim, np.float32))
        self.rows = np.random.default_rng(2).standard_normal((s.n_kv_heads, max_len, s.head_dim), dtype=np.float32)

    def rewind(self, n_held: int) -> None:
        for cache in self.caches:
            cache.reset()
            cache.append(self.rows[:, :n_held], self.rows[:, :n_held])

    def step(self) -> int:
        return int(self.llama(np.array([1]), self.caches)[-1].argmax())

    def greedy(self, ids: np.ndarray, n_new: int) -> list[int]:
        self.rewind(0)
        tokens: list[int] = []
        while len(tokens) < n_new:
            tokens.append(int(self.llama(np.array(tokens[-1:]) if tokens else ids, self.caches)[-1].argmax()))
        return tokens


class TorchReadable(Contender):
    """`kvlab.llama.torch_llama`, PyTorch as lesson 13 shows it, on the course's static cache."""

    name = "kvlab-torch"

    def __init__(self, model: Model, dtype: str, max_len: int) -> None:
        super().__init__(model, dtype, max_len)
        try:
            import torch

            from kvlab.llama.torch_llama import from_weights
        except ImportError as error:
            raise Unavailable(f"the course's modules do not load: {error}") from None
        s, self.torch = model.shape, torch
        kind = getattr(torch, dtype)
        self.llama = from_weights(llama_config(model), llama_weights(model), kind)
        self.caches = self.llama.make_caches(max_len=max_len)
        self.rows = torch.randn(1, s.n_kv_heads, max_len, s.head_dim).to(kind)

    def rewind(self, n_held: int) -> None:
        for cache in self.caches:
            cache.reset()
            cache.update(self.rows[:, :, :n_held], self.rows[:, :, :n_held])

    def step(self) -> int:
        return self._next(self.torch.tensor([[1]]))

    def _next(self, ids: Any) -> int:
        return int(self.llama(ids, self.caches, last_only=True)[0, -1].argmax())

    def greedy(self, ids: np.ndarray, n_new: int) -> list[int]:
        self.rewind(0)
        tokens: list[int] = []
        while len(tokens) < n_new:
            fed = self.torch.from_numpy(np.array(tokens[-1:]) if tokens else ids.astype(np.int64))
            tokens.append(self._next(fed[None]))
        return tokens


def llama_config(model: Model) -> Any:
    """The model's shape as kvlab.llama takes it."""
    from kvlab.llama import LlamaConfig

    s = model.shape
    sizes = {name: getattr(s, name) for name in ("n_layers", "n_heads", "n_kv_heads", "head_dim", "d_model", "d_ff")}
    return LlamaConfig(
        **sizes,
        vocab_size=s.vocab_size,
        max_positions=model.max_positions,
        rope_base=model.rope_base,
        norm_eps=model.norm_eps,
        tied=s.tied,
    )


def llama_weights(model: Model) -> Any:
    """The model's weights as kvlab.llama takes them: the same arrays."""
    from kvlab.llama.weights import Layer, Weights

    w = model.weights
    layers = [Layer(**vars(layer)) for layer in w.layers]
    return Weights(embed=w.embed, layers=layers, final_norm=w.final_norm, head=w.head)
