"""What pytest starts (kernels, workers, subprocesses) runs without a network; solutions run strictly."""

import os
from pathlib import Path

import pytest

OFFLINE = str(Path(__file__).parent / "tests" / "offline")

before = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p not in ("", OFFLINE)]
os.environ["PYTHONPATH"] = os.pathsep.join([OFFLINE, *before])


@pytest.hookimpl(tryfirst=True)  # before nbval starts the kernel, which inherits the environment
def pytest_runtest_setup(item: pytest.Item) -> None:
    """In a solution anything but "passed" raises. Exercises as shipped must not."""
    if item.path.parent.name == "solutions":
        os.environ["KVLAB_STRICT"] = "1"
    else:
        os.environ.pop("KVLAB_STRICT", None)
