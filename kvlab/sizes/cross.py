"""Cross-attention: a second cache, over the tokens of an encoder."""

from collections.abc import Mapping

from kvlab.sizes.fields import Factor, Fields, shown, whole
from kvlab.sizes.groups import Group, Sources
from kvlab.sizes.heads import Shape
from kvlab.sizes.kinds import CROSS


def cross_groups(
    fields: Fields, layers: Factor, groups: list[Group], shape: Shape, encoder_tokens: int | None
) -> list[Group]:
    """A second cache over the encoder's tokens; changes `groups` where those layers have no self-attention (mllama)."""
    indices = fields.items("cross_attention_layers")
    everywhere = fields.switch("is_encoder_decoder") or fields.switch("add_cross_attention")
    everywhere = everywhere or fields.top.get("is_encoder_decoder") is True
    if indices is None and not everywhere:
        return []
    if isinstance(shape.kv_heads, list):
        raise ValueError(f"config: cross-attention beside {shape.heads_source} is not understood")
    count, source = (
        layers.value,
        "is_encoder_decoder" if not fields.get("add_cross_attention") else "add_cross_attention",
    )
    if indices is not None:
        count, source = len(indices), fields.source("cross_attention_layers")
        if len(groups) != 1 or count > layers.value or len(set(map(str, indices))) != count:
            raise ValueError(f"config: {source} = {shown(indices)} does not fit the {layers.value} layers")
        groups[0] = groups[0]._replace(
            n_layers=layers.value - count,
            sources=groups[0].sources._replace(n_layers=f"{layers.source} {layers.value} - {count} in {source}"),
        )
    held = _encoder_tokens(fields, encoder_tokens)
    sources = Sources(source, shape.heads_source, shape.k_source, shape.v_source, held.source if held else "--tokens")
    heads = shape.kv_heads
    return [Group(CROSS, count, heads, shape.k_width, shape.v_width, held.value if held else None, sources)]


def _encoder_tokens(fields: Fields, given: int | None) -> Factor | None:
    if given is not None:
        return Factor(given, "--encoder-tokens")
    frames = fields.count("max_source_positions")
    if fields.model_type == "whisper" and frames is not None:
        return frames
    vision = fields.top.get("vision_config")
    if fields.get("cross_attention_layers") is not None and isinstance(vision, Mapping):
        size, patch, tiles = (vision.get(name) for name in ("image_size", "patch_size", "max_num_tiles"))
        if size and patch and tiles:
            size, patch, tiles = (whole(f"vision_config: {n}", n) for n in (size, patch, tiles))
            fields.warnings.append("cross-attention: assumed one image; --encoder-tokens says otherwise")
            return Factor(
                ((size // patch) ** 2 + 1) * tiles, "vision_config: ((image_size / patch_size)^2 + 1) x tiles"
            )
    fields.warnings.append("no field says how many tokens the encoder gives: assumed as many as the decoder's")
    return None
