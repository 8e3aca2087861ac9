"""The state of a recurrent layer: constant in the context, float32, for each sequence.

Convolution rows are kernel - 1 of the layer's inputs, the newest is recomputed; beside them the recurrent state.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from kvlab.sizes.fields import Factor, Fields, whole

STATE_BYTES = 4


class Part(NamedTuple):
    """Float32 numbers, and the product of fields that gives them."""

    values: int
    formula: str


class State(NamedTuple):
    """What one layer keeps for one sequence; either part may be missing."""

    conv: Part | None
    recurrent: Part | None

    @property
    def values(self) -> int:
        return sum(part.values for part in self if part is not None)


def state_of_a_layer(fields: Fields) -> State | None:
    """The state by the first family whose fields are there; None, with a warning that names what is missing."""
    for mark, read in _FAMILIES.items():
        if fields.get(mark) is not None:
            try:
                return read(fields)
            except ValueError as error:
                if "is missing" not in str(error):
                    raise
                reason = str(error).removeprefix("config: ")
                fields.warnings.append(f"the recurrent state is not counted: {reason}")
                return None
    fields.warnings.append(
        f"the recurrent state is not counted: no field of {fields.model_type!r} says how large it is"
    )
    return None


def _conv_and_state(kernel: Factor, conv_width: int, state: int, conv: str, recurrent: str) -> State:
    rows = Part((kernel.value - 1) * conv_width, f"({kernel.source} {kernel.value} - 1) x ({conv}) {conv_width:,}")
    return State(rows, Part(state, recurrent) if state else None)


def _gated_delta(fields: Fields) -> State:
    k_heads, v_heads = fields.need("linear_num_key_heads").value, fields.need("linear_num_value_heads").value
    k_dim, v_dim = fields.need("linear_key_head_dim").value, fields.need("linear_value_head_dim").value
    return _conv_and_state(
        fields.need("linear_conv_kernel_dim"),
        2 * k_heads * k_dim + v_heads * v_dim,
        v_heads * k_dim * v_dim,
        "2 x linear_num_key_heads x linear_key_head_dim + linear_num_value_heads x linear_value_head_dim",
        "linear_num_value_heads x linear_key_head_dim x linear_value_head_dim",
    )


def _kimi_delta(fields: Fields) -> State:
    inner = fields.get("linear_attn_config")
    if not isinstance(inner, Mapping):
        raise ValueError("config: linear_attn_config is missing")
    heads, width, kernel = (_inner(inner, n) for n in ("num_heads", "head_dim", "short_conv_kernel_size"))
    return _conv_and_state(
        Factor(kernel, "linear_attn_config.short_conv_kernel_size"),
        3 * heads * width,
        heads * width * width,
        "3 x num_heads x head_dim",
        "num_heads x head_dim x head_dim",
    )


def _inner(inner: Mapping[str, Any], name: str) -> int:
    if inner.get(name) is None:
        raise ValueError(f"config: linear_attn_config.{name} is missing")
    return whole(f"linear_attn_config.{name}", inner[name])


def _short_conv(fields: Fields) -> State:
    width = fields.count("conv_dim") or fields.need("hidden_size")
    return _conv_and_state(fields.need("conv_L_cache"), width.value, 0, width.source, "no recurrent state")


def _mamba_2(heads: str, width: str, state: str, groups: str, kernel: str) -> Callable[[Fields], State]:
    """Mamba 2: the convolution runs over the inner width and the two of each group."""

    def read(fields: Fields) -> State:
        n_heads, head_dim, d_state = (fields.need(name).value for name in (heads, width, state))
        n_groups = fields.need(groups).value
        return _conv_and_state(
            fields.need(kernel),
            n_heads * head_dim + 2 * n_groups * d_state,
            n_heads * head_dim * d_state,
            f"{heads} x {width} + 2 x {groups} x {state}",
            f"{heads} x {width} x {state}",
        )

    return read


def _mamba_1(state: str, kernel: str, expand: str) -> Callable[[Fields], State]:
    def read(fields: Fields) -> State:
        inner = fields.count("intermediate_size") if state == "state_size" else None
        width, said = (inner.value, inner.source) if inner else (0, f"{expand} x hidden_size")
        width = width or fields.need(expand).value * fields.need("hidden_size").value
        d_state = fields.need(state).value
        return _conv_and_state(fields.need(kernel), width, width * d_state, said, f"{said} x {state}")

    return read


def _zamba_2(fields: Fields) -> State:
    """Mamba 2 in Zamba's words, which changed over time."""
    expand = fields.count("mamba_expand") or fields.need("expand")
    d_state = fields.count("mamba_d_state") or fields.need("state_size")
    kernel = fields.count("mamba_d_conv") or fields.need("conv_dimension")
    inner, groups = expand.value * fields.need("hidden_size").value, fields.need("mamba_ngroups").value
    return _conv_and_state(
        kernel,
        inner + 2 * groups * d_state.value,
        inner * d_state.value,
        f"{expand.source} x hidden_size + 2 x mamba_ngroups x {d_state.source}",
        f"{expand.source} x hidden_size x {d_state.source}",
    )


def _rg_lru(fields: Fields) -> State:
    width = fields.count("lru_width") or fields.need("hidden_size")
    return _conv_and_state(fields.need("conv1d_width"), width.value, width.value, width.source, width.source)


def _lightning(fields: Fields) -> State:
    heads, width = fields.need("num_attention_heads"), fields.need("head_dim")
    return State(None, Part(heads.value * width.value**2, "num_attention_heads x head_dim x head_dim"))


# The field that marks a family, looked for in this order.
_FAMILIES: dict[str, Callable[[Fields], State]] = {
    "linear_num_value_heads": _gated_delta,
    "linear_attn_config": _kimi_delta,
    "conv_L_cache": _short_conv,
    "mamba_n_heads": _mamba_2("mamba_n_heads", "mamba_d_head", "mamba_d_state", "mamba_n_groups", "mamba_d_conv"),
    "mamba_num_heads": _mamba_2("mamba_num_heads", "mamba_head_dim", "ssm_state_size", "n_groups", "conv_kernel"),
    "mamba_headdim": _zamba_2,
    "mamba_d_state": _mamba_1("mamba_d_state", "mamba_d_conv", "mamba_expand"),
    "n_groups": _mamba_2("num_heads", "head_dim", "state_size", "n_groups", "conv_kernel"),
    "state_size": _mamba_1("state_size", "conv_kernel", "expand"),
    "lru_width": _rg_lru,
    "conv1d_width": _rg_lru,
    "attn_type_list": _lightning,
}
