"""The tiny decoder of `kvlab.decoder` as PyTorch modules: without a cache, and the same weights with one.

`TorchDecoder` is what a model looks like before anyone thought of caching: `model(ids) -> logits`. Its parts (`embed`,
`positions`, `layers[i].attn_norm`, `.attn.wq .wk .wv .wo`, `.mlp_norm`, `.mlp`, `final_norm`, `head`) are modules to
call one by one. `add_cache(model)` is the same computation with a cache a layer.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import nn

from kvlab.decoder import DecoderConfig, TinyDecoder
from kvlab.positions import alibi_bias
from kvlab.shapes import expect, expect_count, expect_groups
from kvlab.torch_attention import attention, merge_heads, rotate, split_heads
from kvlab.torch_caches import AXES, ConcatCache, Pair, StaticCache, TorchCache, update_cache

Ids = Int[torch.Tensor, "batch n"]
Hidden = Float[torch.Tensor, "batch n d_model"]
Queries = Float[torch.Tensor, "batch n_heads n head_dim"]
Keys = Float[torch.Tensor, "batch n_kv_heads n head_dim"]  # and values
AllKeys = Float[torch.Tensor, "batch n_kv_heads n_total head_dim"]
Logits = Float[torch.Tensor, "batch n vocab"]
LayerCache = TorchCache | Pair | None


class Projections(nn.Module):
    """The four matrices of an attention layer, wq, wk, wv, wo, and what surrounds the attention itself.

    Args:
        d_model, n_heads, n_kv_heads, head_dim: sizes; wk and wv are n_kv_heads * head_dim wide.
        rope_base: rotate queries and keys with this base; None leaves them as they are.
        alibi: add a bias by distance to the scores.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        n_kv_heads: int,
        head_dim: int,
        rope_base: float | None = None,
        alibi: bool = False,
    ) -> None:
        super().__init__()
        expect_groups(n_heads, n_kv_heads)
        self.n_heads, self.n_kv_heads, self.head_dim = n_heads, n_kv_heads, head_dim
        self.rope_base, self.alibi = rope_base, alibi
        self.wq = nn.Linear(d_model, n_heads * head_dim, bias=False)
        self.wk = nn.Linear(d_model, n_kv_heads * head_dim, bias=False)
        self.wv = nn.Linear(d_model, n_kv_heads * head_dim, bias=False)
        self.wo = nn.Linear(n_heads * head_dim, d_model, bias=False)

    def qkv(self, x: Hidden, start: int) -> tuple[Queries, Keys, Keys]:
        """Queries, keys and values of tokens that begin at position `start`; keys as they are to be stored."""
        q = split_heads(self.wq(x), self.n_heads)
        k, v = split_heads(self.wk(x), self.n_kv_heads), split_heads(self.wv(x), self.n_kv_heads)
        if self.rope_base is not None:
            q, k = rotate(q, start, self.rope_base), rotate(k, start, self.rope_base)
        return q, k, v

    def mix(self, q: Queries, k: AllKeys, v: AllKeys) -> Hidden:
        """Attend, merge the heads, project: (batch, n_new, d_model)."""
        bias = None
        if self.alibi:
            bias = torch.from_numpy(alibi_bias(self.n_heads, q.shape[2], k.shape[2])).to(q)
        return self.wo(merge_heads(attention(q, k, v, bias)))


class Attention(Projections):
    """An attention layer without a cache: all tokens come in at once, the first at position 0."""

    def forward(self, x: Hidden) -> Hidden:
        return self.mix(*self.qkv(x, start=0))


class CachedAttention(Projections):
    """The same layer with a cache: it takes one, appends the new tokens' rows, and returns it.

    >>> layer = CachedAttention(d_model=32, n_heads=4, n_kv_heads=2, head_dim=8)
    >>> out, (k, v) = layer(torch.zeros(1, 5, 32))
    >>> out, (k, v) = layer(torch.zeros(1, 1, 32), (k, v))
    >>> out.shape, k.shape
    (torch.Size([1, 1, 32]), torch.Size([1, 2, 6, 8]))
    """

    def forward(self, x: Hidden, cache: LayerCache = None) -> tuple[Hidden, LayerCache]:
        return attend_cached(self, x, cache)


def attend_cached(attn: Projections, x: Hidden, cache: LayerCache) -> tuple[Hidden, LayerCache]:
    """One attention layer over the cached tokens and the new ones.

    Args:
        attn: the layer's weights.
        x: (batch, n_new, d_model), tokens that follow what the cache holds.
        cache: a TorchCache, which is updated; or a (k, v) pair or None, which stay as they were.

    Returns:
        ((batch, n_new, d_model), cache): the cache object given, or the pair that takes the old one's place.
    """
    q, k, v = attn.qkv(x, start=cached_tokens(cache))
    if cache is None or isinstance(cache, tuple):
        pair = update_cache(cache, k, v)
        return attn.mix(q, *pair), pair
    return attn.mix(q, *cache.update(k, v)), cache


def cached_tokens(cache: LayerCache) -> int:
    """Tokens that a layer's cache holds: the position of the next one.

    >>> cached_tokens(None), cached_tokens((torch.zeros(1, 2, 5, 8), torch.zeros(1, 2, 5, 8)))
    (0, 5)
    """
    if cache is None:
        return 0
    return expect("cached keys", cache[0], AXES)["n_new"] if isinstance(cache, tuple) else len(cache)


class SwiGLU(nn.Module):
    """(silu(x w_gate) * (x w_up)) w_down. Shazeer 2020."""

    def __init__(self, d_model: int, d_ff: int) -> None:
        super().__init__()
        self.w_gate = nn.Linear(d_model, d_ff, bias=False)
        self.w_up = nn.Linear(d_model, d_ff, bias=False)
        self.w_down = nn.Linear(d_ff, d_model, bias=False)

    def forward(self, x: Hidden) -> Hidden:
        return self.w_down(nn.functional.silu(self.w_gate(x)) * self.w_up(x))


class Block(nn.Module):
    """One layer: x + attn(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        c = config
        self.attn_norm = nn.RMSNorm(c.d_model, eps=1e-6)
        self.attn = Attention(
            c.d_model,
            c.n_heads,
            c.n_kv_heads,
            c.head_dim,
            rope_base=c.rope_base if c.positions == "rope" else None,
            alibi=c.positions == "alibi",
        )
        self.mlp_norm = nn.RMSNorm(c.d_model, eps=1e-6)
        self.mlp = SwiGLU(c.d_model, c.d_ff)

    def forward(self, x: Hidden) -> Hidden:
        x = x + self.attn(self.attn_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class TorchDecoder(nn.Module):
    """A decoder that has no cache: `model(ids)` computes over all of `ids`, every time.

    Args:
        config: its shape, `kvlab.decoder.DecoderConfig`.

    >>> model = TorchDecoder.from_numpy(TinyDecoder())
    >>> model(torch.tensor([[3, 1, 4, 1, 5]])).shape
    torch.Size([1, 5, 64])
    """

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab_size, config.d_model)
        self.positions = nn.Embedding(config.max_positions, config.d_model) if config.positions == "learned" else None
        self.layers = nn.ModuleList([Block(config) for _ in range(config.n_layers)])
        self.final_norm = nn.RMSNorm(config.d_model, eps=1e-6)
        self.head = nn.Linear(config.d_model, config.vocab_size, bias=False)
        self.head.weight = self.embed.weight  # tied, as in the NumPy decoder

    @classmethod
    def from_numpy(cls, decoder: TinyDecoder, device: torch.device | str = "cpu") -> "TorchDecoder":
        """The same weights, copied, in the same dtype."""
        model = cls(decoder.config).to(device=device, dtype=torch.from_numpy(decoder.weights["embed"]).dtype)
        model.load_state_dict(_state_dict(decoder.weights))
        return model

    def embed_at(self, ids: Ids, start: int) -> Hidden:
        """Embeddings of tokens that begin at position `start`, with learned positions added where the model has them.

        Raises:
            ValueError: ids that are no batch of known tokens, or positions beyond the learned table.
        """
        n = expect("ids", ids, ("batch", "n"))["n"]
        if ids.dtype not in (torch.int64, torch.int32):
            raise ValueError(f"ids: expected int64 or int32, got {ids.dtype}")
        # On a GPU, looking at the ids would stop the queue at every step; it refuses a row out of range by itself.
        if not ids.is_cuda and ids.numel() and not 0 <= ids.min() <= ids.max() < self.config.vocab_size:
            raise ValueError(f"ids must be 0 to {self.config.vocab_size - 1}, got {ids.min()} to {ids.max()}")
        x = self.embed(ids)
        if self.positions is None:
            return x
        if start + n > self.config.max_positions:
            raise ValueError(
                f"positions must be 0 to {self.config.max_positions - 1}, the rows of the learned table, "
                f"got {start} to {start + n - 1}"
            )
        return x + self.positions(torch.arange(start, start + n, device=ids.device))

    def forward(self, ids: Ids) -> Logits:
        """Logits for every token of `ids`, (batch, n) -> (batch, n, vocab_size), the first token at position 0."""
        x = self.embed_at(ids, start=0)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.final_norm(x))


class CachedDecoder(nn.Module):
    """A TorchDecoder's own weights, run with one cache a layer: `cached(ids, caches) -> (logits, caches)`.

    >>> model = TorchDecoder.from_numpy(TinyDecoder())
    >>> cached = CachedDecoder(model)
    >>> ids = torch.tensor([[3, 1, 4, 1, 5]])
    >>> prefill, caches = cached(ids[:, :4])
    >>> last, caches = cached(ids[:, 4:], caches)
    >>> bool((last[:, 0] - model(ids)[:, -1]).abs().max() < 1e-12)
    True
    """

    def __init__(self, model: TorchDecoder) -> None:
        super().__init__()
        self.model = model
        self.config = model.config

    def make_caches(self, batch: int, max_len: int | None = None) -> list[TorchCache]:
        """One empty cache a layer: StaticCaches of `max_len` slots, or ConcatCaches when it is None."""
        c, weight = self.config, self.model.embed.weight
        if max_len is None:
            return [ConcatCache(batch, c.n_kv_heads, c.head_dim) for _ in range(c.n_layers)]
        return [
            StaticCache(batch, c.n_kv_heads, max_len, c.head_dim, weight.dtype, weight.device)
            for _ in range(c.n_layers)
        ]

    def forward(self, ids: Ids, caches: Sequence[LayerCache] | None = None) -> tuple[Logits, list[LayerCache]]:
        """Logits for every token of `ids`, which follow what the caches hold.

        Args:
            ids: (batch, n_new).
            caches: one a layer: TorchCaches, which are updated, or (k, v) pairs, which stay as they were; None starts
                from nothing, with pairs.

        Returns:
            (batch, n_new, vocab_size), and the caches to pass with the next call.

        Raises:
            ValueError: as TorchDecoder.embed_at; not one cache a layer; caches of unequal length.
        """
        if caches is None:
            caches = [None] * self.config.n_layers
        x = self.model.embed_at(ids, start=self._n_past(caches))
        kept: list[LayerCache] = []
        for layer, cache in zip(cast("Iterable[Block]", self.model.layers), caches, strict=True):
            out, cache = attend_cached(layer.attn, layer.attn_norm(x), cache)
            x = x + out
            x = x + layer.mlp(layer.mlp_norm(x))
            kept.append(cache)
        return self.model.head(self.model.final_norm(x)), kept

    def _n_past(self, caches: Sequence[LayerCache]) -> int:
        if len(caches) != self.config.n_layers:
            raise ValueError(f"caches: expected one a layer, {self.config.n_layers}, got {len(caches)}")
        lengths = {cached_tokens(cache) for cache in caches}
        if len(lengths) > 1:
            raise ValueError(f"caches: the layers must hold equally many tokens, got lengths {sorted(lengths)}")
        return lengths.pop()


def add_cache(model: TorchDecoder) -> CachedDecoder:
    """The same weights, with a cache: `add_cache(model)(ids, caches) -> (logits, caches)`."""
    return CachedDecoder(model)


def greedy(logits: Float[torch.Tensor, "batch vocab"]) -> Int[torch.Tensor, "batch 1"]:
    """The most likely token of each row.

    >>> greedy(torch.tensor([[0.0, 2.0, 1.0]])).tolist()
    [[1]]
    """
    return logits.argmax(dim=-1, keepdim=True)


def sample(
    logits: Float[torch.Tensor, "batch vocab"],
    temperature: float = 1.0,
    top_p: float = 1.0,
    generator: torch.Generator | None = None,
) -> Int[torch.Tensor, "batch 1"]:
    """Draw a token a row from softmax(logits / temperature), cut to its nucleus.

    The nucleus is the smallest set of most likely tokens whose probabilities reach top_p (Holtzman et al. 2020,
    section 3.1); their probabilities are divided by their sum.

    Args:
        logits: (batch, vocab).
        temperature: above 0; below 1 sharpens, above 1 flattens.
        top_p: above 0, up to 1; 1 keeps every token, up to the rounding of the sum.
        generator: of random numbers, for draws that can be repeated.

    Raises:
        ValueError: a temperature that is not positive (use `greedy`), or a top_p outside (0, 1].

    >>> sample(torch.tensor([[0.0, 9.0, 1.0]]), top_p=0.5).tolist()
    [[1]]
    """
    if not temperature > 0:
        raise ValueError(f"temperature must be above 0, got {temperature}: for no randomness use greedy")
    if not 0 < top_p <= 1:
        raise ValueError(f"top_p must be above 0 and at most 1, got {top_p}")
    probabilities, order = (logits / temperature).softmax(dim=-1).sort(dim=-1, descending=True)
    before = probabilities.cumsum(dim=-1) - probabilities
    drawn = torch.multinomial(probabilities.masked_fill(before >= top_p, 0.0), 1, generator=generator)
    return order.gather(-1, drawn)


@torch.no_grad()
def generate(
    model: Callable[[Ids, Any], tuple[Logits, Any]],
    ids: Ids,
    n_new: int,
    choose: Callable[[torch.Tensor], torch.Tensor] = greedy,
    caches: Any = None,
) -> Int[torch.Tensor, "batch n_all"]:
    """Generate with a cache in exactly n_new model calls: the prompt once, then one token each.

    The prompt's call yields the first new token, so the last one is never fed in or stored.

    Args:
        model: `model(ids, caches) -> (logits, caches)`, such as `add_cache(decoder)`.
        ids: (batch, n_prompt) with at least one token.
        n_new: tokens to generate.
        choose: (batch, vocab) logits -> (batch, 1) ids.
        caches: what the first call is given; None lets the model start its own.

    Returns:
        (batch, n_prompt + n_new) ids, the prompt first.

    Raises:
        ValueError: an empty prompt, a negative n_new.
    """
    expect_count("n_new", n_new)
    if expect("ids", ids, ("batch", "n_prompt"))["n_prompt"] == 0:
        raise ValueError("generate: the prompt is empty, give it at least one token")
    out, fed = ids, ids
    for _ in range(n_new):
        logits, caches = model(fed, caches)
        fed = choose(logits[:, -1])
        out = torch.cat([out, fed], dim=1)
    return out


def to_llama(model: TorchDecoder) -> Any:
    """A `transformers.LlamaForCausalLM` with this model's weights: an independent implementation to compare with.

    Raises:
        ValueError: a model without RoPE, which Llama always has.
    """
    c = model.config
    if c.positions != "rope":
        raise ValueError(f'to_llama: Llama has rotary positions, this model has positions="{c.positions}"')
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=c.vocab_size,
        hidden_size=c.d_model,
        intermediate_size=c.d_ff,
        num_hidden_layers=c.n_layers,
        num_attention_heads=c.n_heads,
        num_key_value_heads=c.n_kv_heads,
        head_dim=c.head_dim,
        rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": c.rope_base},
        max_position_embeddings=c.max_positions,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
    )
    llama: nn.Module = LlamaForCausalLM(config)
    llama.to(model.embed.weight)
    llama.load_state_dict(_llama_state(model.state_dict()))
    return llama.eval()


LLAMA_NAMES = {
    "layers.": "model.layers.",
    "attn_norm": "input_layernorm",
    "mlp_norm": "post_attention_layernorm",
    "attn.w": "self_attn.w",
    "self_attn.wq": "self_attn.q_proj",
    "self_attn.wk": "self_attn.k_proj",
    "self_attn.wv": "self_attn.v_proj",
    "self_attn.wo": "self_attn.o_proj",
    "w_gate": "gate_proj",
    "w_up": "up_proj",
    "w_down": "down_proj",
    "embed.": "model.embed_tokens.",
    "final_norm": "model.norm",
    "head.": "lm_head.",
}


def _llama_state(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Our parameter names -> those of transformers' Llama, applied in the order of LLAMA_NAMES."""
    renamed = {}
    for name, tensor in state.items():
        for ours, theirs in LLAMA_NAMES.items():
            name = name.replace(ours, theirs)
        renamed[name] = tensor
    return renamed


def _state_dict(weights: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The NumPy decoder's weights under this module's names; nn.Linear keeps a matrix as (out, in)."""
    state = {
        "embed.weight": weights["embed"],
        "head.weight": weights["embed"],
        "final_norm.weight": weights["final_norm"],
    }
    if "positions" in weights:
        state["positions.weight"] = weights["positions"]
    for i, layer in enumerate(weights["layers"]):
        for name in ("attn_norm", "mlp_norm"):
            state[f"layers.{i}.{name}.weight"] = layer[name]
        for name in ("wq", "wk", "wv", "wo"):
            state[f"layers.{i}.attn.{name}.weight"] = layer[name].T
        for name in ("w_gate", "w_up", "w_down"):
            state[f"layers.{i}.mlp.{name}.weight"] = layer[name].T
    return {name: torch.from_numpy(array.copy()) for name, array in state.items()}
