"""What each layer of a model keeps, by the config's own words: every token, a window, a state, or nothing."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from kvlab.sizes.fields import LIMIT_TOKENS, Factor, Fields, attention_blocks, contradict, shown

FULL, SLIDING, CHUNKED, RECURRENT, CROSS = "full", "sliding", "chunked", "recurrent", "cross"
HYBRID, HYBRID_SLIDING, NOTHING = "hybrid", "hybrid sliding", "nothing"  # attention beside a state; no cache at all


class Kinds(NamedTuple):
    """The kind of every layer, or one kind for all of them, and the field that says so."""

    of_layer: str | list[str]
    source: str


_NAMES = {
    **dict.fromkeys(("full_attention", "attention", "global_attention", "global", "full", "indexed_attention"), FULL),
    "deepseek_sparse_attention": FULL,
    **dict.fromkeys(("sliding_attention", "local_attention", "local", "sliding", "sliding_window"), SLIDING),
    "chunked_attention": CHUNKED,
    **dict.fromkeys(("linear_attention", "mamba", "mamba2", "conv", "recurrent", "linear"), RECURRENT),
    **{"hybrid": HYBRID, "hybrid_sliding": HYBRID_SLIDING},
    **dict.fromkeys(("mlp", "moe", "none"), NOTHING),
}
_LETTERS = {"M": RECURRENT, "*": FULL, "-": NOTHING, "E": NOTHING}
_WINDOW_LETTERS = {"L": SLIDING, "S": SLIDING, "G": FULL, "F": FULL}
_WINDOWS = ("sliding_window", "sliding_window_size", "attention_window_size")

# A window on all but every n-th layer, by the model's code where its config.json is silent.
_PATTERN_OF = {
    **dict.fromkeys(("gemma2", "vaultgemma", "gpt_oss"), 2),
    **dict.fromkeys(("cohere2", "olmo3", "exaone4"), 4),
    **dict.fromkeys(("gemma3n", "gemma3n_text"), 5),
    **dict.fromkeys(("gemma3", "gemma3_text"), 6),
}
_WINDOW_OFF_UNLESS_SAID = ("qwen2", "qwen2_moe", "qwen2_5_vl", "qwen2_vl", "qwen3", "qwen3_moe", "smollm3")
_ALL_RECURRENT = ("mamba", "mamba2", "falcon_mamba")


def layer_kinds(fields: Fields, n_layers: int) -> Kinds:
    """The kinds of `n_layers` layers; ValueError where the fields contradict each other or are not understood."""
    said = None
    for read in _READERS:
        said = read(fields, n_layers)
        if said is not None:
            break
    else:
        said = _by_window(fields, n_layers)
    return _share(fields, said, n_layers)


def window(fields: Fields) -> Factor | None:
    """How many tokens a sliding layer keeps."""
    found = None
    for name in _WINDOWS:
        factor = fields.count(name, limit=LIMIT_TOKENS)
        if factor and found and factor.value != found.value:
            contradict(found.source, found.value, factor.source, factor.value)
        found = found or factor
    if found is None and fields.get("attention_types"):
        found = fields.count("window_size", limit=LIMIT_TOKENS)
    return found


def _named(fields: Fields, name: str, entries: Sequence[Any], n_layers: int, names: dict[Any, str]) -> Kinds:
    source = fields.source(name)
    if len(entries) != n_layers:
        raise ValueError(f"config: {source} lists {len(entries)} layers, but the model has {n_layers}")
    try:
        return Kinds([names[entry] for entry in entries], source)
    except (KeyError, TypeError):
        wrong = next(e for e in entries if not isinstance(e, str | int) or e not in names)
        raise ValueError(f"config: {source}: a layer of kind {shown(wrong)} is not understood") from None


def _by_layer_types(fields: Fields, n_layers: int) -> Kinds | None:
    entries = fields.items("layer_types")
    if entries is None:
        return None
    kinds = _named(fields, "layer_types", entries, n_layers, _NAMES)
    _expect_same(fields, kinds, n_layers)
    return kinds


def _expect_same(fields: Fields, kinds: Kinds, n_layers: int) -> None:
    """Two fields that describe the same pattern must agree."""
    for read in (_by_interval, _by_pattern):
        other = read(fields, n_layers)
        if other is not None and list(other.of_layer) != list(kinds.of_layer):
            counts = [sum(kind == FULL for kind in k.of_layer) for k in (kinds, other)]
            raise ValueError(
                f"config: {kinds.source} says {counts[0]} full layers, {other.source} says {counts[1]}, or others: "
                "they contradict each other"
            )
    if fields.get("use_sliding_window") is False and SLIDING in kinds.of_layer:
        raise ValueError(f"config: use_sliding_window = False, but {kinds.source} lists sliding layers")


def _by_block_types(fields: Fields, n_layers: int) -> Kinds | None:
    entries = fields.items("layers_block_type")
    if entries is not None:
        return _named(fields, "layers_block_type", entries, n_layers, _NAMES)
    for name in ("block_types", "_block_types"):  # RecurrentGemma: a pattern that repeats; its attention is local
        entries = fields.items(name)
        if entries is not None:
            names = _NAMES | ({"attention": SLIDING} if fields.get("attention_window_size") else {})
            repeated = [entries[i % len(entries)] for i in range(n_layers)]
            return _named(fields, name, repeated, n_layers, names)
    return None


def _by_hybrid_pattern(fields: Fields, n_layers: int) -> Kinds | None:
    text = fields.get("hybrid_override_pattern")
    if text is not None:
        if not isinstance(text, str):
            raise ValueError(f"config: hybrid_override_pattern: expected a string of M, *, - and E, got {shown(text)}")
        return _named(fields, "hybrid_override_pattern", text, n_layers, _LETTERS)
    entries = fields.items("hybrid_layer_pattern")
    if entries is None:
        return None
    return _named(fields, "hybrid_layer_pattern", entries, n_layers, {0: FULL, 1: SLIDING})


def _by_block_configs(fields: Fields, n_layers: int) -> Kinds | None:
    """Nemotron-NAS: each block says whether it has attention at all."""
    blocks = attention_blocks(fields)
    if blocks is None:
        return None
    kinds = []
    for attention in blocks:
        if any(attention.get(name) for name in ("window_length", "sparsify", "is_mamba", "mamba")):
            raise ValueError(f"config: block_configs: attention {shown(attention)} is not understood")
        kinds.append(NOTHING if attention.get("no_op") or attention.get("replace_with_linear") else FULL)
    if len(kinds) != n_layers:
        raise ValueError(f"config: block_configs lists {len(kinds)} layers, but the model has {n_layers}")
    return Kinds(kinds, fields.source("block_configs"))


def _by_indices(fields: Fields, n_layers: int) -> Kinds | None:
    """A list of the layers that have attention; the others are recurrent (or, for `hybrid_layer_ids`, all are)."""
    linear = fields.get("linear_attn_config")
    if isinstance(linear, dict):  # Kimi Linear counts from 1
        full = linear.get("full_attn_layers")
        if not isinstance(full, list):
            raise ValueError("config: linear_attn_config.full_attn_layers is missing")
        return _at(fields, "linear_attn_config.full_attn_layers", full, n_layers, FULL, first=1)
    for name, kind in (("attn_layer_indices", FULL), ("full_attn_idxs", FULL), ("hybrid_layer_ids", HYBRID)):
        indices = fields.items(name)
        if indices is not None:
            return _at(fields, name, indices, n_layers, kind)
    entries = fields.items("attn_type_list")
    if entries is not None:
        return _named(fields, "attn_type_list", entries, n_layers, {0: RECURRENT, 1: FULL})
    return None


def _at(fields: Fields, name: str, indices: list[Any], n_layers: int, kind: str, first: int = 0) -> Kinds:
    kinds = [RECURRENT] * n_layers
    for index in indices:
        if type(index) is not int or not first <= index < n_layers + first:
            raise ValueError(f"config: {fields.source(name)}: {shown(index)} is no layer of {n_layers}")
        kinds[index - first] = kind
    return Kinds(kinds, fields.source(name))


def _every(n: int, n_layers: int, others: str, kind: str = FULL, offset: int = -1) -> list[str]:
    """Layer i has `kind` where i % n == offset, counted from the end of the period by default."""
    kinds = [others] * n_layers
    kinds[offset % n :: n] = [kind] * len(range(offset % n, n_layers, n))
    return kinds


def _by_interval(fields: Fields, n_layers: int) -> Kinds | None:
    for name, others in (
        ("full_attention_interval", RECURRENT),
        ("layer_group_size", RECURRENT),
        ("global_attn_every_n_layers", SLIDING),
    ):
        every = fields.count(name)
        if every is not None:
            return Kinds(_every(every.value, n_layers, others), f"{every.source} {every.value}")
    return None


def _by_period(fields: Fields, n_layers: int) -> Kinds | None:
    period = fields.count("attn_layer_period")
    if period is None:
        return None
    offset = fields.count("attn_layer_offset", least=0)
    if offset is None:
        raise ValueError(f"config: {period.source} = {period.value}, but attn_layer_offset is missing")
    if offset.value >= period.value:
        contradict(period.source, period.value, offset.source, offset.value)
    kind = HYBRID if fields.model_type == "zamba" else FULL
    return Kinds(
        _every(period.value, n_layers, RECURRENT, kind, offset.value),
        f"{period.source} {period.value}, {offset.source} {offset.value}",
    )


def _by_attention_types(fields: Fields, n_layers: int) -> Kinds | None:
    """GPT-Neo: [[["global", "local"], 12]] is a pattern and how often it repeats."""
    parts = fields.items("attention_types")
    if parts is None:
        return None
    try:
        entries = [kind for pattern, times in parts for _ in range(min(times, n_layers + 1)) for kind in pattern]
    except (TypeError, ValueError):
        raise ValueError(f"config: attention_types: {shown(parts)} is not understood") from None
    return _named(fields, "attention_types", entries, n_layers, _NAMES)


def _by_chunks(fields: Fields, n_layers: int) -> Kinds | None:
    """Llama 4: the layers with RoPE attend within chunks, those without see everything."""
    if fields.get("attention_chunk_size") is None:
        return None
    rope = fields.items("no_rope_layers")
    if rope is not None:
        return _named(fields, "no_rope_layers", rope, n_layers, {0: FULL, 1: CHUNKED})
    every = fields.count("no_rope_layer_interval")
    if every is None:
        every = Factor(4, "no_rope_layer_interval")
        fields.warnings.append("no_rope_layers is missing: assumed that every 4th layer is full, as Llama 4 has it")
    return Kinds(_every(every.value, n_layers, CHUNKED), every.source)


def _by_pattern(fields: Fields, n_layers: int) -> Kinds | None:
    """`sliding_window_pattern`: 6 is five windows and a full layer; "LLLG" is the same written out."""
    name = next((n for n in ("sliding_window_pattern", "_sliding_window_pattern") if fields.get(n) is not None), None)
    if name is None or fields.get("use_sliding_window") is False:
        return None
    pattern = fields.get(name)
    if isinstance(pattern, str) and pattern:
        repeated = [pattern[i % len(pattern)] for i in range(n_layers)]
        return Kinds(
            _named(fields, name, repeated, n_layers, _WINDOW_LETTERS).of_layer, f"{fields.source(name)} {pattern}"
        )
    every = fields.count(name)
    assert every is not None
    return Kinds(_every(every.value, n_layers, SLIDING), f"{every.source} {every.value}")


def _by_model_type(fields: Fields, n_layers: int) -> Kinds | None:
    model_type = fields.model_type
    if model_type == "falcon_h1":
        return Kinds(HYBRID, "model_type (falcon_h1: attention and a state side by side in every layer)")
    if model_type in _ALL_RECURRENT:
        return Kinds(RECURRENT, f"model_type ({model_type}: no attention)")
    return None


def _by_window(fields: Fields, n_layers: int) -> Kinds:
    """A window without a list of layers: a pattern, Qwen's `max_window_layers`, the model's code, or every layer."""
    on = fields.switch("use_sliding_window")
    size = window(fields)
    if on is False:
        return Kinds(FULL, "use_sliding_window = false")
    pattern = _by_pattern(fields, n_layers)
    if size is None:
        if on or (pattern is not None and SLIDING in pattern.of_layer):
            said = "use_sliding_window = True" if on else pattern and pattern.source
            raise ValueError(f"config: {said}, but sliding_window is missing")
        return Kinds(FULL, "")
    if on is None and fields.model_type in _WINDOW_OFF_UNLESS_SAID:
        fields.warnings.append(
            f"{size.source} = {size.value}, but use_sliding_window is missing: assumed off, as {fields.model_type} does"
        )
        return Kinds(FULL, size.source)
    if pattern is not None:
        return pattern
    first = fields.count("max_window_layers", least=0)
    if on and first is not None:
        n_full = min(first.value, n_layers)
        return Kinds([FULL] * n_full + [SLIDING] * (n_layers - n_full), f"{first.source} {first.value}")
    every = _PATTERN_OF.get(fields.model_type or "")
    if every is not None:
        fields.warnings.append(
            f"no field says which layers slide: assumed that one in {every} is full, as the code of {fields.model_type}"
        )
        return Kinds(_every(every, n_layers, SLIDING), f"model_type ({fields.model_type})")
    return Kinds(SLIDING, f"{size.source} (no pattern: every layer)")


def _share(fields: Fields, kinds: Kinds, n_layers: int) -> Kinds:
    """Layers that read the cache of another one have none of their own."""
    shared = fields.count("num_kv_shared_layers", least=0)
    factor = fields.count("cla_share_factor") if fields.switch("use_cla") else None
    if fields.get("use_cla") is None and fields.get("cla_share_factor") not in (None, 1):
        fields.warnings.append(
            "cla_share_factor is given, but use_cla is missing: assumed that no layers share a cache"
        )
    if not factor and (not shared or not shared.value):
        return kinds
    of_layer = kinds.of_layer if isinstance(kinds.of_layer, list) else [kinds.of_layer] * n_layers
    if shared and shared.value:
        if shared.value >= n_layers:
            raise ValueError(f"config: {shared.source} = {shared.value}, but the model has {n_layers} layers")
        of_layer = [*of_layer[: n_layers - shared.value], *([NOTHING] * shared.value)]
        return Kinds(of_layer, f"{kinds.source or 'all layers'}, less {shared.source}")
    assert factor is not None
    of_layer = [kind if i % factor.value == 0 else NOTHING for i, kind in enumerate(of_layer)]
    return Kinds(of_layer, factor.source)


_Reader = Callable[[Fields, int], Kinds | None]
_READERS: tuple[_Reader, ...] = (
    *(_by_layer_types, _by_block_types, _by_hybrid_pattern, _by_block_configs, _by_indices, _by_interval),
    *(_by_period, _by_attention_types, _by_chunks, _by_model_type),
)
