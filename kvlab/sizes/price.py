"""The price of a cache: what a model needs for so many tokens, and what fits beside its weights."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kvlab.shapes import expect_count
from kvlab.sizes.dtypes import INDEX_KEY, row_bytes, storage_format
from kvlab.sizes.fields import LIMIT_TOKENS
from kvlab.sizes.formula import Amount, exact_amount
from kvlab.sizes.groups import Group
from kvlab.sizes.heads import Mla
from kvlab.sizes.kinds import CROSS
from kvlab.sizes.layers import Layers, read_layers
from kvlab.sizes.states import STATE_BYTES


class Row(NamedTuple):
    """What a group of equal layers holds for one sequence: `row_bytes` for each of `tokens` tokens, in each layer."""

    group: Group
    row_bytes: int
    gpu_row_bytes: int
    tokens: int

    def held(self, tokens: int) -> int:
        """Tokens that are held when the sequence has `tokens` of them."""
        if self.group.kind == CROSS and self.group.holds is not None:
            return self.group.holds
        return tokens if self.group.holds is None else min(tokens, self.group.holds)


@dataclass(frozen=True)
class Price:
    """What a cache needs, in bytes, and why.

    `kv_bytes` are the attention layers over all sequences, `state_bytes` the recurrent layers' float32 state (None
    where the config does not say how large it is), `bytes_per_token` what one more token of one sequence would add.
    """

    layers: Layers
    tokens: int
    sequences: int
    k_dtype: str
    v_dtype: str
    tp: int
    rows: tuple[Row, ...]
    kv_bytes: int
    state_bytes: int | None
    bytes_per_token: int
    warnings: tuple[str, ...] = field(default=())

    def kv_bytes_at(self, tokens: int, gpu: bool = False) -> int:
        """Bytes of one sequence with `tokens` tokens, over all GPUs or on one of `tp`."""
        return sum(r.group.n_layers * (r.gpu_row_bytes if gpu else r.row_bytes) * r.held(tokens) for r in self.rows)

    @property
    def gpu_kv_bytes(self) -> int:
        """On one of `tp` GPUs: KV heads are split, and copied where there are more GPUs than heads."""
        return self.sequences * self.kv_bytes_at(self.tokens, gpu=True)

    @property
    def gpu_state_bytes(self) -> int:
        """The state on one of `tp` GPUs, split evenly; 0 where it is not known."""
        return -(-(self.state_bytes or 0) // self.tp)

    def as_dict(self) -> dict[str, Any]:
        """The numbers, ready for JSON."""
        return {
            "model_type": self.layers.model_type,
            "tokens": self.tokens,
            "sequences": self.sequences,
            "k_dtype": self.k_dtype,
            "v_dtype": self.v_dtype,
            "kv_bytes": self.kv_bytes,
            "state_bytes": self.state_bytes,
            "bytes_per_token": self.bytes_per_token,
            "layers": [_row_dict(self, row) for row in self.rows]
            + [_state_dict(self, g) for g in _states(self.layers)],
            "warnings": list(self.warnings),
        }


def price(
    config: Any,
    tokens: int,
    sequences: int = 1,
    k_dtype: str = "f16",
    v_dtype: str = "f16",
    mla: Mla = "latent",
    tp: int = 1,
    encoder_tokens: int | None = None,
) -> Price:
    """What the cache of `sequences` sequences of `tokens` tokens needs, from a model's config.json.

    Summed over the kinds of layers: layers x KV heads x (bytes of a key + bytes of a value) x tokens held. A window
    holds min(tokens, window); a latent (MLA) is one row without a factor 2; a recurrent layer holds a state.

    Args:
        config: a config.json as a dict, or a transformers config object. It is not changed.
        tokens: in each sequence.
        sequences: each with a cache of its own.
        k_dtype, v_dtype: a name in `FORMATS`, such as "f16", "bf16", "fp8", "q8_0"; a latent is stored in k_dtype.
        mla: "latent", or "expanded" to keys and values per head.
        tp: GPUs that share the KV heads (tensor parallel).
        encoder_tokens: tokens that cross-attention layers see.

    Raises:
        ValueError: no model config; a field missing, contradictory, not understood; a format that does not fit.

    >>> from kvlab.sizes import load_config
    >>> price(load_config("llama-3.1-8b"), tokens=8192).kv_bytes
    1073741824
    >>> deepseek = {"model_type": "deepseek_v3", "num_hidden_layers": 61, "kv_lora_rank": 512, "qk_rope_head_dim": 64}
    >>> price(deepseek, tokens=1).kv_bytes
    70272
    """
    if encoder_tokens is not None:
        encoder_tokens = _expect("encoder_tokens", encoder_tokens, 0)
    return price_layers(read_layers(config, mla, encoder_tokens), tokens, sequences, k_dtype, v_dtype, tp)


def price_layers(
    layers: Layers, tokens: int, sequences: int = 1, k_dtype: str = "f16", v_dtype: str = "f16", tp: int = 1
) -> Price:
    """`price` for layers that are read already, or changed since: what would other heads or fewer layers need?

    Raises:
        ValueError: a count out of range; a format that is not known or does not fit a layer's width.
    """
    tokens = _expect("tokens", tokens, 0)
    sequences = _expect("sequences", sequences, 1)
    tp = _expect("tp", tp, 1)
    storage_format(k_dtype), storage_format(v_dtype)
    rows = tuple(_row(group, tokens, k_dtype, v_dtype, tp) for group in layers.groups if group.kind != "recurrent")
    one, margin, values = 0, 0, 0
    for row in rows:
        one += row.group.n_layers * row.row_bytes * row.tokens
        if row.held(tokens + 1) > row.tokens:
            margin += row.group.n_layers * row.row_bytes
    for group in _states(layers):
        values += group.n_layers * (group.state.values if group.state else 0)
    state = sequences * STATE_BYTES * values if layers.state_known else None
    return Price(
        *(layers, tokens, sequences, k_dtype, v_dtype, tp, rows, sequences * one, state, margin),
        warnings=layers.warnings + _more_warnings(layers, k_dtype, v_dtype, tp),
    )


def _expect(name: str, value: Any, least: int) -> int:
    value = expect_count(name, value, least)
    if value > LIMIT_TOKENS:
        raise ValueError(f"{name}: expected at most {LIMIT_TOKENS:,}, got an integer of {value.bit_length()} bits")
    return value


def _row(group: Group, tokens: int, k_dtype: str, v_dtype: str, tp: int) -> Row:
    on_gpu = _heads_on_a_gpu(group, tp)
    if group.kind == "latent":
        per_head = _latent_bytes(group, k_dtype)
    elif group.kind == "index":
        per_head = (
            INDEX_KEY.n_bytes if k_dtype == "fp8_ds_mla" else row_bytes(k_dtype, 1, group.k_width, "index key of")
        )
    else:
        if "fp8_ds_mla" in (k_dtype, v_dtype):
            raise ValueError("dtype fp8_ds_mla stores a latent (MLA), this model has keys and values")
        per_head = row_bytes(k_dtype, 1, group.k_width, "a key of") + row_bytes(v_dtype, 1, group.v_width, "a value of")
    row = Row(group, group.kv_heads * per_head, on_gpu * per_head, tokens)
    return row._replace(tokens=row.held(tokens))


def _latent_bytes(group: Group, k_dtype: str) -> int:
    return row_bytes(k_dtype, 1, group.k_width, "a latent of")


def _heads_on_a_gpu(group: Group, tp: int) -> int:
    """KV heads that one of `tp` GPUs stores: its share, or a copy of one head where there are more GPUs than heads."""
    heads = group.kv_heads
    if heads % tp and tp % heads:
        raise ValueError(f"tp: {heads} KV heads are neither split nor copied evenly over {tp} GPUs")
    return max(1, heads // tp)


def _more_warnings(layers: Layers, k_dtype: str, v_dtype: str, tp: int) -> tuple[str, ...]:
    said = []
    kinds = {group.kind for group in layers.groups}
    if "latent" in kinds and storage_format(k_dtype) != storage_format(v_dtype):
        said.append(f"the latent is stored once, in the dtype of K, {k_dtype}; {v_dtype} is not used")
    if tp > 1 and "latent" in kinds:
        said.append(f"the latent belongs to no head: each of the {tp} GPUs stores all of it")
    if tp > 1 and "recurrent" in kinds:
        said.append(f"the recurrent state is assumed to be split evenly over the {tp} GPUs")
    return tuple(said)


def _states(layers: Layers) -> list[Group]:
    return [group for group in layers.groups if group.kind == "recurrent"]


def _row_dict(need: Price, row: Row) -> dict[str, Any]:
    g = row.group
    return {
        "kind": g.kind,
        "count": g.n_layers,
        "kv_heads": g.kv_heads,
        "k_width": g.k_width,
        "v_width": g.v_width,
        "tokens": row.tokens,
        "bytes": need.sequences * g.n_layers * row.row_bytes * row.tokens,
    }


def _state_dict(need: Price, group: Group) -> dict[str, Any]:
    n_bytes = need.sequences * group.n_layers * group.state.values * STATE_BYTES if group.state else None
    return {
        "kind": group.kind,
        "count": group.n_layers,
        "kv_heads": None,
        "k_width": None,
        "v_width": None,
        "tokens": None,
        "bytes": n_bytes,
    }


# What fits


class Fit(NamedTuple):
    """What one GPU holds beside its share of the weights. None: no end to it, for the cache stops growing before."""

    memory_bytes: int | None
    weight_bytes: int
    sequences: int | None
    tokens: int | None
    crossover_tokens: int | None


def fit(need: Price, weight_bytes: Amount, memory_bytes: Amount | None = None) -> Fit:
    """How many sequences and tokens fit beside the weights, and where the cache outgrows them.

    Args:
        need: a priced cache; `fit` asks for sequences of its length, and for tokens at its number of sequences.
        weight_bytes: of the whole model; each of `need.tp` GPUs has an even share.
        memory_bytes: of one GPU; None to ask for the crossover alone.

    Returns:
        Sequences of `need.tokens` tokens that fit; tokens that each of `need.sequences` sequences may have; the
        smallest context at which the cache, state included, is larger than the weights. Activations are not in it.

    Raises:
        ValueError: an amount that is negative or no number.
    """
    weights = -(-exact_amount("weight_bytes", weight_bytes, zero=True) // need.tp)
    state = need.gpu_state_bytes
    crossover = _last_tokens(need, weights - state)
    after = None if crossover is None else max(0, crossover + 1)
    if memory_bytes is None:
        return Fit(None, int(weights), None, None, after)
    memory = exact_amount("memory_bytes", memory_bytes, zero=True)
    free = int(memory - weights)
    one = need.kv_bytes_at(need.tokens, gpu=True) + -(-state // need.sequences)
    sequences = None if one == 0 and free >= 0 else max(0, free // one) if one else 0
    last = _last_tokens(need, free - state)
    return Fit(int(memory), int(weights), sequences, None if last is None else max(0, last), after)


def _last_tokens(need: Price, room: int) -> int | None:
    """The longest context whose cache takes at most `room` over all sequences; -1 where not even an empty one does."""

    def fits(tokens: int) -> bool:
        return need.sequences * need.kv_bytes_at(tokens, gpu=True) <= room

    if not fits(0):
        return -1
    if fits(LIMIT_TOKENS * LIMIT_TOKENS):
        return None
    low, high = 0, 1
    while fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
