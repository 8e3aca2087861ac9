"""KV heads and the widths of a key and a value, under the names that configs have for them."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from kvlab.sizes.fields import Factor, Fields, attention_blocks, contradict, whole

Mla = Literal["latent", "expanded"]
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads", "decoder_attention_heads")
KV_HEADS = (
    *("num_key_value_heads", "num_kv_heads", "n_head_kv", "n_kv_heads", "kv_n_heads", "num_query_groups"),
    "num_attention_groups",
)
HIDDEN = ("hidden_size", "n_embd", "d_model", "n_embed", "dim")
WIDTHS = ("head_dim", "kv_channels", "d_kv", "attention_head_dim")
_MLA_TYPES = ("deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2", "kimi_linear", "minicpm3")
_MULTI_QUERY_TYPES = ("falcon", "RefinedWebModel", "gpt_bigcode")


class Shape(NamedTuple):
    kv_heads: int | list[int]
    k_width: int
    v_width: int
    heads_source: str
    k_source: str
    v_source: str


def latent_shape(fields: Fields, mla: Mla) -> Shape:
    rank, rope = fields.need("kv_lora_rank"), fields.need("qk_rope_head_dim", least=0)
    if mla == "latent":
        one, none = "one latent for all heads (kv_lora_rank)", "the latent serves as key and value: no factor 2"
        return Shape(
            1, rank.value + rope.value, 0, one, f"{rank.source} {rank.value} + {rope.source} {rope.value}", none
        )
    heads = _heads(fields)
    if heads is None:
        raise ValueError(f"config: num_attention_heads is missing{nor(HEADS)}")
    nope, v_width = fields.need("qk_nope_head_dim"), fields.need("v_head_dim")
    k_source = f"{nope.source} {nope.value} + {rope.source} {rope.value}"
    return Shape(heads.value, nope.value + rope.value, v_width.value, heads.source, k_source, v_width.source)


def plain_shape(fields: Fields) -> Shape:
    if fields.model_type in _MLA_TYPES and fields.get("use_mla") is not False:
        raise ValueError(f"config: kv_lora_rank is missing: {fields.model_type} caches a latent, its size is not known")
    if fields.get("qk_nope_head_dim"):
        raise ValueError("config: qk_nope_head_dim is given, but kv_lora_rank is missing: is a latent cached?")
    heads = _heads(fields)
    n_kv, heads_source = _kv_heads(fields, heads)
    width = _head_dim(fields, heads)
    v_width = fields.count("v_head_dim") or width
    if heads is not None and heads.value % max(1, n_kv if isinstance(n_kv, int) else 1):
        raise ValueError(
            f"config: {heads.source} = {heads.value}, but {heads_source} = {n_kv}: "
            "query heads cannot share KV heads evenly"
        )
    return Shape(n_kv, width.value, v_width.value, heads_source, width.source, v_width.source)


def _heads(fields: Fields) -> Factor | None:
    if fields.switch("is_encoder_decoder") or fields.get("decoder_attention_heads") is not None:
        return fields.count("decoder_attention_heads") or first_of(fields, HEADS)
    return fields.one_of(HEADS)


def _kv_heads(fields: Fields, heads: Factor | None) -> tuple[int | list[int], str]:
    """KV heads, one number or one a layer, and the field they came from."""
    per_layer = _kv_heads_per_layer(fields, heads)
    if per_layer is not None:
        return per_layer
    new = fields.switch("new_decoder_architecture")
    if fields.switch("multi_query") and not new:
        return 1, fields.source("multi_query") + " = true"
    if fields.switch("multi_query_attention") is not False:
        groups = fields.count("multi_query_group_num")
        if groups is not None:
            return groups.value, groups.source
    found = fields.one_of(KV_HEADS) or _inner_kv_heads(fields)
    if found is not None:
        return found.value, found.source
    if fields.model_type in _MULTI_QUERY_TYPES and new is None and fields.get("multi_query") is None:
        fields.warnings.append(f"multi_query is missing: assumed true, as the code of {fields.model_type} does")
        return 1, f"model_type ({fields.model_type}: multi-query)"
    if heads is None:
        raise ValueError(f"config: num_attention_heads is missing{nor(HEADS)}, and so is num_key_value_heads")
    return heads.value, f"{heads.source} (no num_key_value_heads: as many as query heads)"


def _kv_heads_per_layer(fields: Fields, heads: Factor | None) -> tuple[list[int], str] | None:
    for name in ("num_key_value_heads_per_layer", "num_kv_heads", "num_key_value_heads"):
        if isinstance(fields.get(name), list | tuple):
            source = fields.source(name)
            listed = fields.items(name) or []
            return [whole(source, n, least=0) for n in listed], source
    blocks = attention_blocks(fields)
    if blocks is None:
        return None
    source = fields.source("block_configs[].attention.n_heads_in_group")
    counts = []
    for attention in blocks:
        own, group = attention.get("num_key_value_heads"), attention.get("n_heads_in_group")
        if attention.get("no_op") or attention.get("replace_with_linear"):
            counts.append(0)
        elif own is not None:
            counts.append(whole("block_configs[].attention.num_key_value_heads", own))
        elif group is None or heads is None:
            raise ValueError(f"config: {source} or num_attention_heads is missing")
        else:
            counts.append(heads.value // whole(source, group))
            if heads.value % group:
                contradict(heads.source, heads.value, source, group)
    return counts, source


def _inner_kv_heads(fields: Fields) -> Factor | None:
    """MPT and DBRX keep theirs in `attn_config`."""
    inner = fields.get("attn_config")
    if not isinstance(inner, Mapping) or inner.get("kv_n_heads") is None:
        return Factor(1, "attn_config.attn_type") if _is_multi_query(inner) else None
    return Factor(whole("attn_config.kv_n_heads", inner["kv_n_heads"]), "attn_config.kv_n_heads")


def _is_multi_query(inner: Any) -> bool:
    return isinstance(inner, Mapping) and inner.get("attn_type") == "multiquery_attention"


def _head_dim(fields: Fields, heads: Factor | None) -> Factor:
    """The width of a head: as given; only otherwise hidden_size / num_attention_heads."""
    if fields.model_type in ("zamba", "zamba2"):  # its kv_channels is hidden_size / num_attention_heads: a decoy
        return fields.need("attention_head_dim")
    found = fields.one_of(WIDTHS)
    if found is not None:
        return found
    hidden = fields.one_of(HIDDEN)
    if hidden is None:
        raise ValueError(f"config: head_dim is missing, and so is hidden_size{nor(HIDDEN[:3])}")
    if heads is None:
        raise ValueError(f"config: head_dim is missing, and so is num_attention_heads{nor(HEADS)}")
    width, rest = divmod(hidden.value, heads.value)
    if rest:
        raise ValueError(
            f"config: head_dim is missing, and {hidden.source} {hidden.value} does not divide by "
            f"{heads.source} {heads.value}"
        )
    return Factor(width, f"{hidden.source} {hidden.value} / {heads.source} {heads.value} (no head_dim)")


def nor(names: tuple[str, ...]) -> str:
    return f" (nor {', '.join(names[1:4])})"


def first_of(fields: Fields, names: tuple[str, ...]) -> Factor | None:
    return next((factor for factor in map(fields.count, names) if factor is not None), None)
