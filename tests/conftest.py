"""Fixtures shared by all tests."""

from collections.abc import Iterator

import hypothesis
import jaxtyping
import pytest

# Fixed examples: a run that fails, fails for everyone. No deadline: a busy machine is no fault of the code.
hypothesis.settings.register_profile("kvlab", derandomize=True, deadline=None, max_examples=50)
hypothesis.settings.register_profile("explore", deadline=None, max_examples=1000)
hypothesis.settings.load_profile("kvlab")


@pytest.fixture
def no_shape_hook() -> Iterator[None]:
    """Switch the shape-checking import hook off: a wrong shape must then be refused by kvlab's own ValueError."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)
