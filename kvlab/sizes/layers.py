"""From a config to the kinds of layers a model has: how many of each, and how wide a token's row is in them."""

from collections import Counter
from typing import Any, NamedTuple

from kvlab.sizes import kinds as k
from kvlab.sizes.cross import cross_groups
from kvlab.sizes.families import ENCODERS, IGNORED, KNOWN, NOT_UNDERSTOOD, RECURRENT_FIELDS, TYPES_NOT_UNDERSTOOD
from kvlab.sizes.fields import DECODER_LAYERS, LAYERS, LIMIT_TOKENS, Factor, Fields, shown
from kvlab.sizes.groups import Group, Sources
from kvlab.sizes.heads import HEADS, HIDDEN, Mla, Shape, first_of, latent_shape, nor, plain_shape
from kvlab.sizes.states import state_of_a_layer

CONTEXT = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_sequence_length")


class Naive(NamedTuple):
    """What the plain formula would put in: every layer, KV heads or query heads, hidden_size / num_attention_heads."""

    layers: Factor
    kv_heads: Factor | None
    head_dim: Factor | None


class Layers(NamedTuple):
    """All groups of a model, and the longest context that it states.

    `state_known` is False where recurrent layers keep a state of unknown size.
    """

    model_type: str | None
    groups: tuple[Group, ...]
    naive: Naive
    context: Factor | None
    warnings: tuple[str, ...]
    state_known: bool


def read_layers(config: Any, mla: Mla = "latent", encoder_tokens: int | None = None) -> Layers:
    """The layers of a model and what each keeps, from its config.json.

    Args:
        config: a config.json as a dict, or a transformers config object.
        mla: whether multi-head latent attention stores the latent, or keys and values expanded per head.
        encoder_tokens: what a cross-attention layer sees; by default what the config says, else assumed.

    Raises:
        ValueError: no model config, a field that is missing, no positive whole number, contradictory or not understood.
    """
    if mla not in ("latent", "expanded"):
        raise ValueError(f"mla: expected latent or expanded, got {shown(mla)}")
    fields = Fields(config)
    _refuse_what_has_no_cache(fields)
    layers = _layer_count(fields)
    said = k.layer_kinds(fields, layers.value)
    if not said.source:
        _refuse_unplaced_states(fields)
    uniform = isinstance(said.of_layer, str)
    present = {said.of_layer} if uniform else set(said.of_layer)
    groups: list[Group] = []
    if present - {k.RECURRENT, k.NOTHING}:
        groups = _attention_groups(fields, layers, said, mla, encoder_tokens)
    state = None
    recurrent = present & {k.RECURRENT, k.HYBRID, k.HYBRID_SLIDING}
    if recurrent:
        state = state_of_a_layer(fields)
        count = layers.value if uniform else sum(kind in recurrent for kind in said.of_layer)
        source = said.source or layers.source
        groups.append(Group(k.RECURRENT, count, 0, 0, 0, None, Sources(source, "", "", "", ""), state))
    _warn_unknown(fields, groups)
    return Layers(
        fields.model_type,
        tuple(groups),
        _naive(fields, layers),
        _quiet(fields, CONTEXT),
        tuple(fields.warnings),
        state is not None or not recurrent,
    )


def _refuse_what_has_no_cache(fields: Fields) -> None:
    for part in (fields.top, fields.config):
        model_type = part.get("model_type")
        if isinstance(model_type, str) and model_type in ENCODERS and not part.get("is_decoder"):
            raise ValueError(f"config: model_type = {model_type}: an encoder keeps no cache")
    if fields.model_type in TYPES_NOT_UNDERSTOOD:
        raise ValueError(f"config: model_type = {fields.model_type}: what it caches is not understood")
    for name in NOT_UNDERSTOOD:
        if fields.config.get(name):
            raise ValueError(f"config: {fields.source(name)} = {shown(fields.config[name])}: {NOT_UNDERSTOOD[name]}")
    for name in IGNORED:
        if fields.config.get(name) and not fields.config.get("attention_types"):
            what = f"{fields.source(name)} = {shown(fields.config[name])}"
            fields.warnings.append(f"{what} is not understood: assumed that it drops nothing")


def _refuse_unplaced_states(fields: Fields) -> None:
    for name in RECURRENT_FIELDS:
        if fields.config.get(name):
            what = f"{fields.source(name)} = {shown(fields.config[name])}"
            raise ValueError(f"config: {what}: some layers are recurrent, but no field says which")


def _layer_count(fields: Fields) -> Factor:
    decoder = first_of(fields, DECODER_LAYERS)
    if decoder is not None:
        return decoder
    if fields.model_type == "longcat_flash" and fields.get("num_layers") is not None:
        own = fields.need("num_layers")
        return Factor(2 * own.value, f"2 x {own.source} (two attentions a layer)")
    found = fields.one_of(LAYERS) if not fields.switch("is_encoder_decoder") else first_of(fields, LAYERS)
    if found is not None:
        return found
    for name in ("layer_types", "layers_block_type"):
        entries = fields.items(name)
        if entries is not None:
            return Factor(len(entries), f"{fields.source(name)}, its length")
    where = f" in {fields.prefix[:-1]}" if fields.prefix else ""
    raise ValueError(f"config: num_hidden_layers is missing{where}{nor(LAYERS)}: is this a model's config.json?")


# Groups of attention layers


def _attention_groups(
    fields: Fields, layers: Factor, said: k.Kinds, mla: Mla, encoder_tokens: int | None
) -> list[Group]:
    latent = fields.get("kv_lora_rank") is not None and fields.get("use_mla") is not False
    shape = latent_shape(fields, mla) if latent else plain_shape(fields)
    if isinstance(said.of_layer, str) and not isinstance(shape.kv_heads, list):
        counts = {(said.of_layer, shape.kv_heads): layers.value}
    else:
        kinds = [said.of_layer] * layers.value if isinstance(said.of_layer, str) else said.of_layer
        heads = shape.kv_heads if isinstance(shape.kv_heads, list) else [shape.kv_heads] * layers.value
        if len(heads) != layers.value:
            raise ValueError(
                f"config: {shape.heads_source} lists {len(heads)} layers, but {layers.source} = {layers.value}"
            )
        counts = dict(Counter(zip(kinds, heads, strict=True)))
    groups = []
    source = _count_source(said, layers, shape)
    for (kind, n_heads), count in counts.items():
        group = _group(fields, kind, n_heads, count, shape, source, latent and mla == "latent")
        if group is not None:
            groups.append(group)
    groups += cross_groups(fields, layers, groups, shape, encoder_tokens)
    if latent and mla == "latent" and fields.get("index_head_dim") is not None:
        groups += _index_groups(fields, groups)
    return groups


def _count_source(said: k.Kinds, layers: Factor, shape: Shape) -> str:
    if isinstance(shape.kv_heads, list) and not isinstance(said.of_layer, list):
        return shape.heads_source
    return said.source if isinstance(said.of_layer, list) else layers.source


def _group(
    fields: Fields, kind: str, n_heads: int, count: int, shape: Shape, source: str, latent: bool
) -> Group | None:
    if kind in (k.RECURRENT, k.NOTHING) or n_heads == 0:
        return None
    holds, bounded = None, "every token"
    if kind in (k.SLIDING, k.HYBRID_SLIDING):
        size = k.window(fields)
        if size is None:
            raise ValueError(f"config: {source} lists sliding layers, but sliding_window is missing")
        holds, bounded = size.value, size.source
    elif kind == k.CHUNKED:
        size = fields.count("attention_chunk_size", limit=LIMIT_TOKENS)
        if size is None:
            raise ValueError(f"config: {source} lists chunked layers, but attention_chunk_size is missing")
        holds, bounded = size.value, size.source
    heads, k_width, v_width = Factor(n_heads, shape.heads_source), _k(shape), _v(shape)
    if not latent:
        heads, k_width, v_width = _by_kind(fields, holds is not None, heads, k_width, v_width)
    name = {k.HYBRID: k.FULL, k.HYBRID_SLIDING: k.SLIDING}.get(kind, kind)
    if latent and name == k.FULL:
        name = "latent"
    sources = Sources(source, heads.source, k_width.source, v_width.source, bounded)
    return Group(name, count, heads.value, k_width.value, v_width.value, holds, sources)


def _k(shape: Shape) -> Factor:
    return Factor(shape.k_width, shape.k_source)


def _v(shape: Shape) -> Factor:
    return Factor(shape.v_width, shape.v_source)


def _by_kind(
    fields: Fields, bounded: bool, heads: Factor, k_width: Factor, v_width: Factor
) -> tuple[Factor, Factor, Factor]:
    """Some models give their windowed layers (MiMo) or their full ones (Gemma 4) other heads and widths."""
    if bounded:
        own_k, own_v = fields.count("swa_head_dim"), fields.count("swa_v_head_dim")
        return fields.count("swa_num_key_value_heads") or heads, own_k or k_width, own_v or own_k or v_width
    wide = fields.count("global_head_dim")
    return fields.count("num_global_key_value_heads") or heads, wide or k_width, wide or v_width


def _index_groups(fields: Fields, groups: list[Group]) -> list[Group]:
    """DeepSeek's sparse attention keeps one more key a token, by which the indexer chooses what is attended."""
    width = fields.need("index_head_dim")
    kinds = fields.items("indexer_types")
    if kinds is None and fields.get("index_topk_freq") not in (None, 1):
        fields.warnings.append("index_topk_freq is given without indexer_types: assumed an index key in every layer")
    shared = sum(kind == "shared" for kind in kinds or [])
    one, none = "one index key for all heads", "an index key has no value"
    found = []
    for g in groups:
        if g.kind == "latent" and g.n_layers > shared:
            source = f"indexer_types: {shared} layers share another's" if shared else g.sources.n_layers
            sources = Sources(source, one, width.source, none, g.sources.holds)
            found.append(Group("index", g.n_layers - shared, 1, width.value, 0, g.holds, sources))
    return found


# Warnings, and the formula everyone knows


def _warn_unknown(fields: Fields, groups: list[Group]) -> None:
    if fields.model_type in KNOWN:
        return
    what = "model_type is missing" if fields.model_type is None else f"model_type {fields.model_type!r} is not known"
    kinds = " and ".join(f"{g.n_layers} {g.kind}" for g in groups) or "no"
    fields.warnings.append(f"{what}: assumed {kinds} layers, as the fields alone say")


def _naive(fields: Fields, layers: Factor) -> Naive:
    """What a reader of three fields would compute, under whatever names the config has; None where it could not."""
    heads, hidden = _quiet(fields, HEADS), _quiet(fields, HIDDEN)
    kv_heads = _quiet(fields, ("num_key_value_heads",))
    width = None
    if heads and hidden:
        width = Factor(hidden.value // heads.value, f"{hidden.source} {hidden.value} // {heads.source} {heads.value}")
    return Naive(layers, kv_heads or heads, width)


def _quiet(fields: Fields, names: tuple[str, ...]) -> Factor | None:
    for name in names:
        value = fields.config.get(name)
        if type(value) is int and value > 0:
            return Factor(value, fields.source(name))
    return None
