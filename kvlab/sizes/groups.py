"""A group of equal layers: what each keeps, and the field that every factor came from."""

from typing import NamedTuple

from kvlab.sizes.states import State


class Sources(NamedTuple):
    """The field each factor of a group came from."""

    n_layers: str
    kv_heads: str
    k_width: str
    v_width: str
    holds: str


class Group(NamedTuple):
    """`n_layers` layers of one kind; `holds` caps the tokens kept, None means all of them."""

    kind: str
    n_layers: int
    kv_heads: int
    k_width: int
    v_width: int
    holds: int | None
    sources: Sources
    state: State | None = None
