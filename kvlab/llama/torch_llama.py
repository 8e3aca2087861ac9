"""Llama's decoder in PyTorch: the same as `kvlab.llama.decoder` with a batch axis, on any device, in several dtypes."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import nn

from kvlab.llama.calls import expect_caches, expect_context, expect_ids, most_rows
from kvlab.llama.checkpoint import Checkpoint
from kvlab.llama.config import LlamaConfig, rope_frequencies
from kvlab.llama.weights import Weights, gather_weights
from kvlab.shapes import expect
from kvlab.torch_attention import merge_heads, offset_mask, split_heads
from kvlab.torch_caches import ConcatCache, StaticCache, attendable

Ids = Int[torch.Tensor, "batch n"]
Hidden = Float[torch.Tensor, "batch n d_model"]
Heads = Float[torch.Tensor, "batch heads n head_dim"]
Queries = Float[torch.Tensor, "batch n_heads n_new head_dim"]
New = Float[torch.Tensor, "batch n_kv_heads n_new head_dim"]  # keys and values of the new tokens
Rows = Float[torch.Tensor, "batch n_kv_heads n_rows head_dim"]  # of all that attention reads
Mask = Bool[torch.Tensor, "n_new n_rows"]
Turn = tuple[Float[torch.Tensor, "n half"], Float[torch.Tensor, "n half"]]


class TorchLlama(nn.Module):
    """A Llama-architecture decoder: `model(ids)` or, with a cache a layer, `model(ids, caches)`; for inference.

    Args:
        config: its shape.
        rotate_on_read: as in `kvlab.llama.Llama`.
        dtype, device: of weights and activations.

    >>> from kvlab.llama.config import from_hugging_face
    >>> sizes = dict(num_hidden_layers=2, num_attention_heads=4, hidden_size=32, intermediate_size=48, vocab_size=64)
    >>> model = TorchLlama(from_hugging_face(dict(model_type="llama", **sizes)))
    >>> ids, caches = torch.tensor([[3, 1, 4, 1, 5]]), model.make_caches(max_len=8)
    >>> prefill, last = model(ids[:, :4], caches), model(ids[:, 4:], caches)
    >>> bool((model(ids)[:, 4:] - last).abs().max() < 1e-5), len(caches[0])
    (True, 5)
    """

    def __init__(
        self,
        config: LlamaConfig,
        rotate_on_read: bool = False,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__()
        c = config
        of: Any = {"dtype": dtype, "device": device}
        self.config, self.rotate_on_read = config, rotate_on_read
        self.embed = nn.Embedding(c.vocab_size, c.d_model, **of)
        self.layers = nn.ModuleList([Layer(c, **of) for _ in range(c.n_layers)])
        self.final_norm = nn.RMSNorm(c.d_model, c.norm_eps, **of)
        self.head = nn.Linear(c.d_model, c.vocab_size, bias=False, **of)
        if c.tied:
            self.head.weight = self.embed.weight
        self.frequencies = torch.from_numpy(rope_frequencies(c))  # no buffer: float64 whatever the model is turned into

    @torch.no_grad()
    def forward(
        self, ids: Ids, caches: Sequence[Any] | None = None, last_only: bool = False
    ) -> Float[torch.Tensor, "batch n_logits vocab"]:
        """Logits for every token of `ids`, which follow what the caches hold.

        Args:
            ids: (batch, n_new) token ids, int64 or int32.
            caches: one a layer, any that `kvlab.torch_caches.attendable` understands; None keeps nothing.
            last_only: logits of the last token alone, (batch, 1, vocab_size).

        Returns:
            (batch, n_new, vocab_size).

        Raises:
            ValueError: ids that do not fit; more tokens than the model has positions; not one cache a layer, or caches
                of another shape, dtype or device, or of unequal length. The caches are as they were. When a cache
                itself raises in the middle, the layers before it hold the new tokens: start with empty ones.
        """
        n_past = self._expect(ids, caches)
        turn = self.turn(n_past, n_past + ids.shape[1])
        x = self.embed(ids)
        for i, layer in enumerate(cast("Iterable[Layer]", self.layers)):
            cache = None if caches is None else caches[i]
            q, k, v = layer.project(x)
            q, k, v, seen = self._remember(q, k, v, turn, cache)
            x = x + layer.wo(merge_heads(attend(q, k, v, seen)))
            x = x + layer.mlp(x)
        return self.head(self.final_norm(x[:, -1:] if last_only else x))

    def _remember(self, q: Queries, k: New, v: New, turn: Turn, cache: Any) -> tuple[Queries, Rows, Rows, Mask | None]:
        """Rotate, and update the cache, in one order or the other: (q, k, v) to attend with and the cache's mask."""
        seen, n_new = None, q.shape[2]
        if not self.rotate_on_read:
            q, k = rotate(q, turn), rotate(k, turn)
        if cache is not None:
            k, v, seen = attendable(cache, k, v)
        if self.rotate_on_read:
            n_rows = k.shape[2]
            q, k = rotate(q, self.turn(n_rows - n_new, n_rows)), rotate(k, self.turn(0, n_rows))
        return q, k, v, seen

    def turn(self, start: int, end: int) -> Turn:
        """(cos, sin) of the angles of positions start to end - 1, each (n, head_dim / 2), computed in float64."""
        weight = self.embed.weight
        self.frequencies = self.frequencies.to(weight.device)
        angles = torch.arange(start, end, device=weight.device)[:, None] * self.frequencies
        return angles.cos().to(weight.dtype), angles.sin().to(weight.dtype)

    def make_caches(
        self, batch: int = 1, max_len: int | None = None, make: Callable[[], Any] | None = None
    ) -> list[Any]:
        """One empty cache a layer: what `make()` builds; else StaticCaches of `max_len` slots, or ConcatCaches."""
        c, weight = self.config, self.embed.weight

        def default() -> Any:
            if max_len is None:
                return ConcatCache(batch, c.n_kv_heads, c.head_dim)
            return StaticCache(batch, c.n_kv_heads, max_len, c.head_dim, weight.dtype, weight.device)

        return [(make or default)() for _ in range(c.n_layers)]

    def _expect(self, ids: Ids, caches: Sequence[Any] | None) -> int:
        """Refuse what does not fit; return the tokens cached."""
        size = expect("ids", ids, ("batch", "n"))
        if not isinstance(ids, torch.Tensor):
            raise ValueError(f"ids: expected a tensor, got {type(ids).__name__}")
        if ids.dtype not in (torch.int64, torch.int32):
            raise ValueError(f"ids: expected int64 or int32, got {ids.dtype}")
        # On a GPU, looking at the ids would stop the queue at every step; it refuses a row out of range by itself.
        if not ids.is_cuda and ids.numel():
            expect_ids(self.config, int(ids.min()), int(ids.max()))
        n_past = 0
        if caches is not None:
            c = self.config
            nothing = self.embed.weight.new_zeros(size["batch"], c.n_kv_heads, 0, c.head_dim)
            n_past = expect_caches(c, caches, size["n"], "update", lambda one: attendable(one, nothing, nothing))
        held = min(n_past, most_rows(caches)) if self.rotate_on_read and caches else n_past
        expect_context(self.config, int(held), size["n"])
        return n_past


class Layer(nn.Module):
    """One layer's weights, fused: q, k and v in one matrix, gate and up in another."""

    def __init__(self, config: LlamaConfig, **of: Any) -> None:
        super().__init__()
        c = config
        self.config = config
        self.attn_norm = nn.RMSNorm(c.d_model, c.norm_eps, **of)
        self.qkv = nn.Linear(c.d_model, (c.n_heads + 2 * c.n_kv_heads) * c.head_dim, bias=False, **of)
        self.wo = nn.Linear(c.n_heads * c.head_dim, c.d_model, bias=False, **of)
        self.mlp_norm = nn.RMSNorm(c.d_model, c.norm_eps, **of)
        self.gate_up = nn.Linear(c.d_model, 2 * c.d_ff, bias=False, **of)
        self.w_down = nn.Linear(c.d_ff, c.d_model, bias=False, **of)

    def project(self, x: Hidden) -> tuple[Queries, New, New]:
        """Queries, keys and values of the new tokens, in one product."""
        c = self.config
        heads = split_heads(self.qkv(self.attn_norm(x)), c.n_heads + 2 * c.n_kv_heads)
        q, k, v = heads.split([c.n_heads, c.n_kv_heads, c.n_kv_heads], dim=1)
        return q, k, v

    def mlp(self, x: Hidden) -> Hidden:
        """(silu(x gate) * (x up)) down, gate and up in one product. Shazeer 2020."""
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, dim=-1)
        return self.w_down(nn.functional.silu(gate) * up)


def rotate(x: Heads, turn: Turn) -> Heads:
    """RoPE, half-split pairing: `kvlab.torch_attention.rotate` with the cosines and sines given."""
    cos, sin = turn
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1)


def attend(q: Queries, k: Rows, v: Rows, mask: Mask | None) -> Queries:
    """`kvlab.torch_attention.attention` with a mask; None is the offset causal mask. Softmax in float32 at least.

    Two plain products: at one query, faster on a CPU than scaled_dot_product_attention in 16 bits.
    """
    batch, n_heads, n_new, head_dim = q.shape
    n_kv_heads, n_rows = k.shape[1:3]
    group = n_heads // n_kv_heads  # one more axis of q, so that k is read once a group and never repeated in memory
    grouped = q.reshape(batch, n_kv_heads, group * n_new, head_dim)
    scores = (grouped @ k.transpose(2, 3)).reshape(batch, n_heads, n_new, n_rows) / head_dim**0.5
    if mask is not None or n_new > 1:  # a single query sees every row there is
        mask = offset_mask(n_new, n_rows, q.device) if mask is None else mask
        scores = scores.masked_fill(~mask, float("-inf"))
    wide = torch.float64 if scores.dtype == torch.float64 else torch.float32
    weights = scores.softmax(dim=-1, dtype=wide).to(q.dtype)
    return (weights.reshape(batch, n_kv_heads, group * n_new, n_rows) @ v).reshape(q.shape)


def from_checkpoint(folder: Path, config: LlamaConfig, dtype: Any = None, rotate_on_read: bool = False) -> TorchLlama:
    """The model of a checkpoint folder; what `kvlab.llama.load(form="torch")` calls.

    Raises:
        ValueError: a dtype that is no float type of torch; whatever `gather_weights` refuses.
    """
    dtype = torch.float32 if dtype is None else dtype
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise ValueError(f"dtype: expected a float type of torch, such as torch.bfloat16, got {dtype!r}")
    tensors = Checkpoint(folder, "float64" if dtype == torch.float64 else "float32")
    return from_weights(config, gather_weights(tensors, config, lazy=True), dtype, rotate_on_read)


def from_weights(
    config: LlamaConfig, weights: Weights, dtype: torch.dtype = torch.float32, rotate_on_read: bool = False
) -> TorchLlama:
    """The NumPy form's weights in PyTorch; in their own dtype they share its memory."""
    model = TorchLlama(config, rotate_on_read, dtype, device="meta")
    model.load_state_dict(dict(_state(weights, dtype)), assign=True)
    if config.tied:
        model.head.weight = model.embed.weight
    return model.requires_grad_(False)


def _state(weights: Weights, dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor]]:
    """The weights under the names of the modules, converted one by one: a large model is never there twice."""

    def tensor(x: Any) -> torch.Tensor:
        return torch.from_numpy(x).to(dtype)

    embed = tensor(weights.embed)
    yield "embed.weight", embed
    yield "head.weight", embed if weights.head is weights.embed else tensor(weights.head)
    yield "final_norm.weight", tensor(weights.final_norm)
    for i, layer in enumerate(weights.layers):
        for name, array in vars(layer).items():
            yield f"layers.{i}.{name}.weight", tensor(array)
