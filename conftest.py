"""What pytest starts (kernels, workers, subprocesses) runs without a network; solutions run strictly.

Cells that need the real model's weights are skipped where `make model` has not run.
"""

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
    if needs_model(item) and (reason := why_no_model()):
        pytest.skip(reason)


def needs_model(item: pytest.Item) -> bool:
    """Whether this is a notebook's cell that is tagged so."""
    return "needs-model" in getattr(item, "cell", {}).get("metadata", {}).get("tags", [])


def why_no_model() -> str:
    """What `kvlab.llama.load` says where the weights are missing; "" where they are, whole or damaged."""
    from kvlab.llama import ModelMissing, model_folder  # not at the top: pytest's import hook has to come first

    try:
        model_folder()
    except ModelMissing as error:
        return str(error)
    except ValueError:
        pass  # the cell itself then fails, and says why
    return ""
