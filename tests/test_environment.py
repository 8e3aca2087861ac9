"""kvlab.environment says what is there, what is missing and how to get it."""

import subprocess
import sys
import types
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from packaging.requirements import Requirement as OracleRequirement
from packaging.version import Version

from kvlab import environment, llama
from kvlab.environment import Facts, Requirement, check, describe, look

NEEDS = (Requirement("numpy", "2.0"), Requirement("torch", "2.6", "torch"))
COMPLETE = Facts(
    python=(3, 12, 1),
    python_floor="3.11",
    system="Linux x86_64",
    cpu="A CPU",
    n_cpus=2,
    memory_bytes=8 * 2**30,
    requirements=NEEDS,
    versions={"numpy": "2.4.6", "torch": "2.13.0+cpu"},
    blas="openblas 0.3, Haswell kernels, 2 threads",
    gpu=None,
    gpu_reason="torch 2.13.0+cpu is not a CUDA build",
    has_nvidia_driver=False,
    has_model=True,
)


def test_this_machine_has_all_the_course_needs() -> None:
    # Without a package index the weights cannot be had, and the rest of the course runs.
    assert [sentence for sentence in check() if "make model" not in sentence] == []


def test_the_model_is_looked_for_where_it_is_loaded_from() -> None:
    assert environment.MODEL == llama.DEFAULT_FOLDER / llama.CHECKED


def test_a_complete_machine_without_a_gpu_lacks_nothing() -> None:
    assert check(COMPLETE) == []
    assert check(replace(COMPLETE, memory_bytes=None)) == []


@pytest.mark.parametrize(
    ("change", "state", "remedy"),
    [
        ({"python": (3, 10, 9)}, "Python 3.10.9 is older than the 3.11", "install a newer one"),
        ({"requirements": (), "versions": {}}, "kvlab is not installed in this Python", "run make lab"),
        ({"versions": {"numpy": None, "torch": "2.6"}}, "numpy is not installed:", '%pip install "numpy>=2.0"'),
        ({"versions": {"numpy": "1.26.4", "torch": "2.6"}}, "numpy 1.26.4 is older than the 2.0", '"numpy>=2.0"'),
        ({"versions": {"numpy": "2.0", "torch": None}}, "torch is not installed (lessons 06, 07 and", '"torch>=2.6"'),
        ({"has_model": False}, "weights of the real model are not here", "run make model"),
        ({"memory_bytes": 2**30}, "1.0 GiB of memory is less than the 2 GiB", "close other notebooks"),
        ({"has_nvidia_driver": True}, "driver is here and torch does not use it (torch 2.13.0+cpu", "pytorch.org"),
    ],
)
def test_what_is_missing_is_said_with_its_remedy(change: dict, state: str, remedy: str) -> None:
    (sentence,) = check(replace(COMPLETE, **change))
    assert state in sentence
    assert remedy in sentence
    assert "\n" not in sentence


def test_everything_missing_is_said_in_one_go() -> None:
    bare = replace(COMPLETE, python=(3, 9), versions={"numpy": None, "torch": None}, memory_bytes=1)
    assert len(check(bare)) == 4


def test_a_gpu_in_use_is_described_and_no_lack() -> None:
    with_gpu = replace(COMPLETE, gpu="NVIDIA H200", gpu_reason="", has_nvidia_driver=True)
    assert check(with_gpu) == []
    assert ["GPU", "NVIDIA", "H200"] in [line.split() for line in describe(with_gpu).splitlines()]


def test_describe_says_unknown_in_words() -> None:
    text = describe(replace(COMPLETE, memory_bytes=None, blas=None, versions={"numpy": "2.4.6", "torch": None}))
    rows = dict(line.split("  ", 1) for line in text.splitlines())
    assert rows["memory"].strip() == "unknown"
    assert "threadpoolctl" in rows["BLAS"]
    assert rows["torch"].strip() == "not installed"
    assert "lesson 07 times the CPU" in rows["GPU"]


def test_look_agrees_with_the_interpreter_and_the_installed_packages() -> None:
    import numpy
    import torch

    facts = look()
    assert facts.python == sys.version_info[:3]
    assert facts.versions["numpy"] == numpy.__version__
    assert (facts.gpu is not None) == torch.cuda.is_available()
    assert facts.n_cpus >= 1
    assert facts.blas is not None


def test_floors_are_those_of_the_metadata() -> None:
    oracle = {
        r.name: r for r in map(OracleRequirement, metadata.requires("kvlab") or []) if "peers" not in str(r.marker)
    }
    requirements = {r.name: r for r in look().requirements}
    assert requirements.keys() == oracle.keys()
    for name, requirement in requirements.items():
        assert requirement.spec == f"{name}{oracle[name].specifier}"
        assert (requirement.extra != "") == (oracle[name].marker is not None)


def test_a_requirement_that_is_no_floor_is_refused() -> None:
    with pytest.raises(ValueError, match=r"numpy<3"):
        environment._parse("numpy<3")


releases = st.lists(st.integers(0, 30), min_size=1, max_size=4).map(lambda numbers: ".".join(map(str, numbers)))


@given(releases, releases)
@example("2.0", "2.0.0")
@example("2.10", "2.9")
def test_older_agrees_with_packaging(version: str, floor: str) -> None:
    assert environment._older(version, floor) == (Version(version) < Version(floor))


def test_memory_is_the_smaller_of_machine_and_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(environment, "CGROUP_LIMITS", (limit,))
    without = environment._memory_bytes()
    limit.write_text("1048576\n")
    assert environment._memory_bytes() == 1048576
    limit.write_text("max\n")
    assert environment._memory_bytes() == without != 1048576


def test_kvlab_not_installed_is_no_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "PACKAGE", "no-such-package-here")
    assert environment._requirements() == ((), "")


def test_torch_that_is_missing_or_broken_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert environment._gpu() == (None, "torch, which would find one, is not installed")


def test_why_torch_sees_no_device_is_its_own_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    import warnings

    def is_available() -> bool:
        warnings.warn("The driver is too old.\nUpdate it.", stacklevel=1)
        return False

    torch = types.SimpleNamespace(
        __version__="2.13.0+cu130",
        version=types.SimpleNamespace(cuda="13.0"),
        cuda=types.SimpleNamespace(is_available=is_available),
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert environment._gpu() == (None, "The driver is too old.")


def test_importing_it_loads_only_the_standard_library() -> None:
    code = "import sys, kvlab.environment; print([m for m in ('numpy', 'torch', 'jaxtyping') if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_the_command_prints_both_parts_and_its_status_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(environment, "look", lambda: COMPLETE)
    assert environment.main() == 0
    assert "Nothing is missing." in capsys.readouterr().out
    monkeypatch.setattr(environment, "look", lambda: replace(COMPLETE, python=(3, 9)))
    assert environment.main() == 1
    assert "Python 3.9 is older" in capsys.readouterr().out
    assert environment.main(["--help"]) == 2
