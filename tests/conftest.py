"""Fixtures shared by all tests."""

from collections.abc import Iterator

import jaxtyping
import pytest


@pytest.fixture
def no_shape_hook() -> Iterator[None]:
    """Switch the shape-checking import hook off: a wrong shape must then be refused by kvlab's own ValueError."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)
