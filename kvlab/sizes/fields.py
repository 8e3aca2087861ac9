"""Read a config.json strictly: every number comes with the name of the field it came from, or an error names it."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

LIMIT = 10_000_000  # no field of a config is larger, but the window
LIMIT_TOKENS = 10**12
_NESTED = ("text_config", "llm_config", "language_config", "thinker_config", "decoder")
LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "num_transformer_layers")
DECODER_LAYERS = ("decoder_layers", "num_decoder_layers")


class Factor(NamedTuple):
    """A number and where it stands."""

    value: int
    source: str


class Fields:
    """The part of a config that describes the text decoder, with the whole (`top`) beside it."""

    __slots__ = ("config", "model_type", "prefix", "top", "warnings")

    def __init__(self, config: Any) -> None:
        self.top: Mapping[str, Any] = as_mapping(config)
        self.config, self.prefix = self.top, ""
        self.warnings: list[str] = []
        self._unwrap()
        model_type = self.config.get("model_type") or self.top.get("model_type")
        if model_type is not None and not isinstance(model_type, str):
            raise ValueError(f"config: model_type: expected a name, got {shown(model_type)}")
        self.model_type: str | None = model_type

    def _unwrap(self) -> None:
        """Go down to the text model. A nested part without layers of its own is none."""
        for name in _NESTED:
            inner = self.config.get(name)
            if not isinstance(inner, Mapping):
                continue
            has_layers = any(inner.get(field) is not None for field in (*LAYERS, *DECODER_LAYERS, *_NESTED))
            if not has_layers and any(self.config.get(field) is not None for field in LAYERS):
                continue
            self.config, self.prefix = inner, f"{self.prefix}{name}."
            return self._unwrap()

    def get(self, name: str) -> Any:
        return self.config.get(name)

    def source(self, name: str) -> str:
        return self.prefix + name

    def count(self, name: str, least: int = 1, limit: int = LIMIT) -> Factor | None:
        """The field as a whole number; None where it is absent or null."""
        value = self.config.get(name)
        if value is None:
            return None
        return Factor(whole(self.prefix + name, value, least, limit), self.prefix + name)

    def need(self, name: str, least: int = 1) -> Factor:
        found = self.count(name, least)
        if found is None:
            raise ValueError(f"config: {self.prefix}{name} is missing")
        return found

    def one_of(self, names: Iterable[str]) -> Factor | None:
        """The same fact under its several names; two names that disagree contradict each other."""
        found = None
        for name in names:
            value = self.config.get(name)
            if value is None:
                continue
            factor = Factor(whole(self.prefix + name, value), self.prefix + name)
            if found is None:
                found = factor
            elif factor.value != found.value:
                contradict(found.source, found.value, factor.source, factor.value)
        return found

    def switch(self, name: str) -> bool | None:
        value = self.config.get(name)
        if value is not None and not isinstance(value, bool):
            raise ValueError(f"config: {self.prefix}{name}: expected true or false, got {shown(value)}")
        return value

    def items(self, name: str) -> list[Any] | None:
        value = self.config.get(name)
        if value is None or (isinstance(value, list | tuple) and not value):
            return None
        if not isinstance(value, list | tuple):
            raise ValueError(f"config: {self.prefix}{name}: expected a list, got {shown(value)}")
        return list(value)


def attention_blocks(fields: Fields) -> list[Mapping[str, Any]] | None:
    """The attention part of every entry in Nemotron-NAS's `block_configs`."""
    blocks = fields.items("block_configs")
    if blocks is None:
        return None
    for block in blocks:
        if not isinstance(block, Mapping) or not isinstance(block.get("attention"), Mapping):
            raise ValueError(f"config: block_configs: expected blocks with an attention part, got {shown(block)}")
    return [block["attention"] for block in blocks]


def as_mapping(config: Any) -> Mapping[str, Any]:
    """A dict as it is, a transformers config object by its `to_dict()`."""
    if isinstance(config, Mapping):
        return config
    to_dict = getattr(config, "to_dict", None)
    if callable(to_dict):
        return to_dict()
    raise ValueError(f"config: expected a config.json as a dict, got {type(config).__name__}")


def whole(name: str, value: Any, least: int = 1, limit: int = LIMIT) -> int:
    """`value` as an int from `least` to `limit`, or a ValueError that names the field."""
    if type(value) is int and least <= value <= limit:
        return value
    if isinstance(value, bool) or not hasattr(value, "__index__") or value < least:
        raise ValueError(f"config: {name}: expected a whole number of at least {least}, got {shown(value)}")
    if value > limit:
        raise ValueError(f"config: {name}: expected a whole number of at most {limit:,}, got {shown(value)}")
    return int(value)


def contradict(one: str, value: Any, other: str, other_value: Any) -> None:
    raise ValueError(f"config: {one} = {shown(value)}, but {other} = {shown(other_value)}: they contradict each other")


def shown(value: Any) -> str:
    """A value as one short line."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**30:
        return f"an integer of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
