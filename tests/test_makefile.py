"""The commands a newcomer types, and the one line each says when something is in the way."""

import os
import re
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def run(*command: str, folder: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command as a newcomer's shell would: none of make's own variables, none of ours."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS", "PYTHON", "TORCH_INDEX"))}
    return subprocess.run(
        command, cwd=folder, env=kept | environment, capture_output=True, text=True, timeout=60, check=False
    )


def test_make_alone_lists_every_target_with_a_sentence() -> None:
    listed = run("make")
    assert listed.returncode == 0, listed.stderr
    assert listed.stdout == run("make", "help").stdout
    sentences = dict(re.findall(r"^  make (\S+) +(\S.*\.)$", listed.stdout, re.M))
    tests = {"test", "test-all", "test-browser"}
    assert set(sentences) == tests | {"help", "lab", "model", "check", "build", "bench", "clean", ".venv"}
    assert all(len(line) <= 120 for line in listed.stdout.splitlines())


@pytest.mark.parametrize("target", ["lab", "model", "test", "check", "build", "bench"])
def test_every_target_builds_the_environment_first(target: str, tmp_path: Path) -> None:
    (tmp_path / "Makefile").write_text((ROOT / "Makefile").read_text())
    for name in ("requirements.txt", "pyproject.toml", "tools/set_up.sh"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    planned = run("make", "-n", target, folder=tmp_path)
    assert planned.stdout.splitlines()[0] == "sh tools/set_up.sh", planned.stderr
    assert len(planned.stdout.splitlines()) > 1


# Set-up. A stand-in for a Python or a tool is a small script in a folder that comes first on PATH.


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with the set-up script, a list of packages, and `bin` for stand-ins."""
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "set_up.sh").write_text((ROOT / "tools" / "set_up.sh").read_text())
    (tmp_path / "requirements.txt").write_text("numpy==1.0   # a reason\ntorch==9.9.9   # another\n")
    (tmp_path / "bin").mkdir()
    return tmp_path


def stand_in(checkout: Path, name: str, script: str) -> None:
    path = checkout / "bin" / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def set_up(checkout: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    # Only stand-ins and the plain tools of the system: no uv, no other Python than those a test puts there.
    for tool in ("sh", "dirname", "uname", "sed", "rm", "mkdir", "ln", "touch", "cat"):
        link = checkout / "bin" / tool
        if not link.exists():
            found = next(Path(d) / tool for d in os.environ["PATH"].split(os.pathsep) if (Path(d) / tool).exists())
            link.symlink_to(found)
    return run(
        str(checkout / "bin" / "sh"), "tools/set_up.sh", folder=checkout, **environment, PATH=str(checkout / "bin")
    )


# Answers as Python 3.9 does: this Python, told another version.
OLD = f"""
case "$1" in
    --version) echo Python 3.9.2 ;;
    -c) exec "{sys.executable}" -c "import sys; sys.version_info = (3, 9, 2); $2" ;;
esac
"""
NO_VENV = 'case "$*" in *venv*) exit 1 ;; esac'

# Answers as a recent Python does, writes down how pip was called, and makes an environment of itself.
RECENT = """
echo "$@" >>calls
case "$*" in
    "-m venv "*) mkdir -p .venv/bin .venv/share/jupyter/nbconvert/templates; ln -s "$0" .venv/bin/python ;;
    "--version") echo Python 3.12.0 ;;
esac
"""


def test_old_python_is_refused_in_one_line(checkout: Path) -> None:
    stand_in(checkout, "python3", OLD)
    refused = set_up(checkout)
    assert refused.returncode != 0
    assert refused.stderr == (
        "set-up: Python 3.11 or newer is needed, found: Python 3.9.2. "
        "Install one, then name it: make .venv PYTHON=python3.12\n"
    )
    assert refused.stdout == ""
    assert not (checkout / ".venv").exists()


def test_no_python_is_refused_in_one_line(checkout: Path) -> None:
    refused = set_up(checkout)
    assert refused.returncode != 0
    assert "found: no python3. Install one" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1


def test_the_named_python_is_the_only_one_tried(checkout: Path) -> None:
    stand_in(checkout, "python3", RECENT)
    stand_in(checkout, "old one", OLD)
    refused = set_up(checkout, PYTHON=str(checkout / "bin" / "old one"))
    assert refused.returncode != 0
    assert "found: Python 3.9.2" in refused.stderr


def test_a_newer_python_beside_an_old_one_is_found(checkout: Path) -> None:
    stand_in(checkout, "python3", OLD)
    stand_in(checkout, "python3.12", RECENT)
    built = set_up(checkout)
    assert built.returncode == 0, built.stderr
    assert "building .venv with Python 3.12.0" in built.stdout


def test_python_without_venv_is_told_the_package(checkout: Path) -> None:
    stand_in(checkout, "python3", NO_VENV)
    refused = set_up(checkout)
    assert refused.returncode != 0
    assert refused.stderr == "set-up: python3 has no venv module. On Debian and Ubuntu: apt install python3-venv\n"


def pip_calls(checkout: Path) -> list[str]:
    return [line for line in (checkout / "calls").read_text().splitlines() if "pip install" in line]


@pytest.mark.skipif(sys.platform != "linux", reason="the extra index is used on Linux only")
def test_torch_comes_from_the_cpu_index_without_a_gpu(checkout: Path) -> None:
    if Path("/dev/nvidia0").exists():
        pytest.skip("this machine has an NVIDIA GPU")
    stand_in(checkout, "python3", RECENT)
    assert set_up(checkout).returncode == 0
    torch, rest, package = pip_calls(checkout)
    assert "--extra-index-url https://download.pytorch.org/whl/cpu torch==9.9.9" in torch
    assert "--retries 0" in torch
    assert rest.endswith("-r requirements.txt")
    assert package.endswith("-e .")


@pytest.mark.parametrize("environment", [{"TORCH_INDEX": ""}, {}], ids=["empty index", "NVIDIA GPU"])
def test_torch_comes_from_the_usual_index(checkout: Path, environment: dict[str, str]) -> None:
    stand_in(checkout, "python3", RECENT)
    stand_in(checkout, "nvidia-smi", "exit 0" if not environment else "exit 1")
    assert set_up(checkout, **environment).returncode == 0
    assert len(pip_calls(checkout)) == 2
    assert "extra-index" not in "".join(pip_calls(checkout))


def test_an_index_that_cannot_be_reached_does_not_stop_the_set_up(checkout: Path) -> None:
    stand_in(checkout, "python3", RECENT + 'case "$*" in *extra-index-url*) exit 1 ;; esac')
    built = set_up(checkout, TORCH_INDEX="https://nowhere.invalid")
    assert built.returncode == 0, built.stderr
    assert "no torch from https://nowhere.invalid, taking it from the usual index" in built.stdout
    assert (checkout / ".venv" / "built").exists()


def test_a_half_built_environment_does_not_count(checkout: Path) -> None:
    stand_in(checkout, "python3", RECENT + 'case "$*" in *requirements.txt*) test -e network ;; esac')
    failed = set_up(checkout)
    assert failed.returncode != 0
    assert failed.stderr == (
        "set-up: not every package could be installed, the reason stands above; the next try goes on from here\n"
    )
    assert not (checkout / ".venv" / "built").exists()
    (checkout / "network").touch()
    assert set_up(checkout).returncode == 0
    assert (checkout / ".venv" / "built").exists()
    assert (checkout / "calls").read_text().count("-m venv") == 1, "the environment was begun anew"


# JupyterLab


def test_a_port_in_use_is_said_in_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        refused = run(sys.executable, "tools/lab.py", "--no-browser", "--port", str(port))
    assert refused.returncode == 1
    assert refused.stdout == ""
    assert refused.stderr == (
        f"make lab: port {port} is in use; name another with LAB_ARGS='--port {port + 1}', or none to get a free one\n"
    )
