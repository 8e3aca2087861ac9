"""An instructor's existing nbgrader course takes the solution notebooks as they are, and grades what comes back."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LESSON = "03_offset_mask"
NBGRADER = "nbgrader==0.9.6"
TOP_LEFT = (
    "import numpy as np\n\ndef offset_mask(n_new, n_total):\n    return np.tril(np.ones((n_new, n_total), bool))\n"
)


def attempt(folder: Path, *command: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command as an instructor would: without what pytest and the offline tests put into the environment."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "KVLAB", "PYTHON"))}
    # nbgrader calls alembic by its name: the environment has to be on the PATH, as an activated one is.
    environment["PATH"] = os.pathsep.join([str(Path(command[0]).parent), environment["PATH"]])
    return subprocess.run(
        [str(c) for c in command], cwd=folder, env=environment, capture_output=True, text=True, timeout=600
    )


def run(folder: Path, *command: str | Path) -> str:
    done = attempt(folder, *command)
    assert done.returncode == 0, f"{command}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def nbgrader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment that holds nbgrader and kvlab, as an instructor's would; its bin folder."""
    folder = tmp_path_factory.mktemp("nbgrader")
    run(folder, sys.executable, "-m", "venv", "environment")
    binaries = folder / "environment" / "bin"
    reachable = attempt(folder, binaries / "python", "-m", "pip", "download", "--no-deps", "--dest", "there", NBGRADER)
    if reachable.returncode != 0:
        pytest.skip(f"nbgrader has to be installed from the package index: {reachable.stderr.strip().splitlines()[-1]}")
    run(folder, binaries / "python", "-m", "pip", "install", "--quiet", NBGRADER, ROOT)
    return binaries


@pytest.mark.slow
def test_nbgrader_generates_from_the_solution_and_grades_right_wrong_and_untouched(
    nbgrader: Path, tmp_path: Path
) -> None:
    solution = json.loads((ROOT / "solutions" / f"{LESSON}.ipynb").read_text(encoding="utf-8"))
    source = tmp_path / "source" / "ps1"
    source.mkdir(parents=True)
    (source / f"{LESSON}.ipynb").write_text(json.dumps(solution), encoding="utf-8")
    run(tmp_path, nbgrader / "nbgrader", "generate_assignment", "ps1", "--create", "--force")
    released = json.loads((tmp_path / "release" / "ps1" / f"{LESSON}.ipynb").read_text(encoding="utf-8"))
    text = "".join("".join(c["source"]) for c in released["cells"])
    assert "raise NotImplementedError" in text and "SOLUTION" not in text and "frequencies" not in text

    wrong = json.loads(json.dumps(released))
    for cell in wrong["cells"]:
        if cell["metadata"].get("nbgrader", {}).get("grade_id") == "offset_mask":
            cell["source"] = TOP_LEFT
    for student, notebook in (("right", solution), ("wrong", wrong), ("untouched", released)):
        folder = tmp_path / "submitted" / student / "ps1"
        folder.mkdir(parents=True)
        (folder / f"{LESSON}.ipynb").write_text(json.dumps(notebook), encoding="utf-8")
    run(tmp_path, nbgrader / "nbgrader", "autograde", "ps1", "--create")

    run(tmp_path, nbgrader / "nbgrader", "export", "--to", "grades.csv")
    with open(tmp_path / "grades.csv", newline="", encoding="utf-8") as grades:
        rows = [(row["student_id"], float(row["score"]), float(row["max_score"])) for row in csv.DictReader(grades)]
    assert {student: (score, most) for student, score, most in rows} == {
        "right": (7.0, 7.0),
        "wrong": (0.0, 7.0),
        "untouched": (0.0, 7.0),
    }
