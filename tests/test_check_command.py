"""`kvlab check`, `exercises`, `hint` and `progress` as they are typed, and the same from a notebook."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pytest
from typer.testing import CliRunner

from kvlab.checks import CheckFailed, check, hint, notebook
from kvlab.checks.engine import Failure, Outcome
from kvlab.checks.files import (
    Unusable,
    check_files,
    is_untouched,
    load,
    progress_rows,
    progress_table,
    read_cells,
    yours,
)
from kvlab.checks.registry import cards, exercise
from kvlab.checks.report import Report, in_words
from kvlab.cli import app

pytestmark = pytest.mark.usefixtures("no_shape_hook")

ROOT = Path(__file__).resolve().parent.parent
HEAD = "import numpy as np\n\ndef offset_mask(n_new, n_total):\n"
RIGHT = HEAD + "    return np.tri(n_total, dtype=bool)[n_total - n_new :]\n"
TOP_LEFT = HEAD + "    return np.tril(np.ones((n_new, n_total), bool))\n"
KEYS = ["file", "exercise", "verdict", "points", "max_points", "mistake", "message"]


def run(*arguments: str | Path) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, [str(a) for a in arguments])
    assert "Traceback" not in done.output
    return done.exit_code, done.stdout, done.stderr


def write(folder: Path, text: str, name: str = "submission.py") -> Path:
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return file


def write_notebook(folder: Path, *cells: str, name: str = "submission.ipynb") -> Path:
    nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
    nbformat.write(nb, folder / name)
    return folder / name


def verdict(file: Path, name: str = "offset_mask", limit_s: float = 10.0) -> dict[str, Any]:
    return next(check_files(name, [file], limit_s))


def test_the_top_left_triangle_is_told_what_it_believes(tmp_path: Path) -> None:
    status, out, _ = run("check", "offset_mask", write(tmp_path, TOP_LEFT))
    assert status == 1
    assert "hangs from the top-left corner" in out
    assert "input     offset_mask(3, 7)" in out and "query 0 sees 1 key where 5 belong" in out
    assert out.count("?") == 1


def test_json_is_one_object_a_line_and_the_status_says_whether_all_passed(tmp_path: Path) -> None:
    right, wrong = write(tmp_path, RIGHT, "right.py"), write(tmp_path, TOP_LEFT, "wrong.py")
    status, out, _ = run("check", "offset_mask", right, wrong, "--json")
    answers = [json.loads(line) for line in out.splitlines()]
    assert status == 1
    assert [list(a) for a in answers] == [KEYS, KEYS]
    assert [(a["verdict"], a["points"], a["max_points"], a["mistake"]) for a in answers] == [
        ("passed", 2, 2, None),
        ("incorrect", 0, 2, "top_left_triangle"),
    ]
    assert run("check", "offset_mask", right)[0] == 0


@pytest.mark.parametrize(
    ("text", "expected", "message"),
    [
        ("", "error", "is empty"),
        ("def offset_mask(a, b:\n", "error", "does not parse, line 1"),
        ("def offset_mak(a, b):\n    return 1\n", "error", "defines no offset_mask; it defines offset_mak"),
        ("class offset_mask:\n    pass\n", "error", "expected a function, got a class"),
        ("offset_mask = 3\n", "error", "expected a function or a class, got int"),
        ("x = 1 / 0\n", "error", "raised ZeroDivisionError: division by zero at line 1: x = 1 / 0"),
        ("def offset_mask(a, b):\n    return undefined\n", "error", "at        line 2: return undefined"),
        (
            "def offset_mask(a, b):\n    raise NotImplementedError('offset_mask: ...')\n",
            "not_attempted",
            "not attempted",
        ),
        ("def offset_mask(a, b):\n    pass\n", "incorrect", "None came back: is a return missing?"),
        ("import os\ndef offset_mask(a, b):\n    os._exit(0)\n", "error", "ended the process"),
        ("import sys\ndef offset_mask(a, b):\n    sys.exit(0)\n", "error", "raised SystemExit"),
        ("def offset_mask(a, b):\n    return offset_mask(a, b)\n", "error", "RecursionError"),
        ("def offset_mask(n):\n    return n\n", "error", "TypeError"),
    ],
)
def test_each_kind_of_file_gets_its_verdict(tmp_path: Path, text: str, expected: str, message: str) -> None:
    answer = verdict(write(tmp_path, text))
    assert answer["verdict"] == expected and message in answer["message"]
    assert "kvlab/checks" not in answer["message"]


@pytest.mark.parametrize(
    "text",
    [
        "def offset_mask(a, b):\n    while True:\n        pass\n",
        "while True:\n    pass\n",
        "def offset_mask(a, b):\n    while True:\n        try:\n            a\n        except:\n            b\n",
    ],
)
def test_an_endless_loop_ends(tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvlab.checks.files.GRACE_S", 0.5)
    assert verdict(write(tmp_path, text), limit_s=0.3)["verdict"] == "timeout"


def test_what_a_submission_prints_does_not_reach_the_output(tmp_path: Path) -> None:
    text = "import os\nprint('noise')\nos.system('echo noise')\n" + RIGHT
    done = subprocess.run(
        [sys.executable, "-m", "kvlab", "check", "offset_mask", write(tmp_path, text), "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 and done.stderr == ""
    assert json.loads(done.stdout)["verdict"] == "passed"


def test_one_bad_file_does_not_stop_the_others(tmp_path: Path) -> None:
    files = [
        tmp_path / "missing.py",
        write(tmp_path, "import os\nos._exit(3)\n", "a.py"),
        write(tmp_path, RIGHT, "b.py"),
    ]
    assert [a["verdict"] for a in check_files("offset_mask", files)] == ["error", "error", "passed"]


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    assert "No such file" in verdict(tmp_path / "missing.py")["message"]
    assert "expected a .py or .ipynb file" in verdict(write(tmp_path, "x", "a.txt"))["message"]
    assert "is not a notebook" in verdict(write(tmp_path, "{}", "a.ipynb"))["message"]
    (tmp_path / "b.py").write_bytes(b"\xff\xfe\x00")
    assert "not UTF-8" in verdict(tmp_path / "b.py")["message"]


def test_an_unknown_exercise_names_the_nearest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run("check", "offsetmask", write(tmp_path, RIGHT), "--json")
    assert status == 1
    answer = json.loads(out)
    assert answer["verdict"] == "error" and "the nearest are offset_mask" in answer["message"]
    hint("KVCahce")
    assert "hint: no exercise is called 'KVCahce': the nearest are KVCache" in capsys.readouterr().out


def test_wrong_usage_is_status_2(tmp_path: Path) -> None:
    assert run("check", "offset_mask")[0] == 2
    assert run("check", "offset_mask", write(tmp_path, RIGHT), "--nonsense")[0] == 2
    assert run("check", "offset_mask", write(tmp_path, RIGHT), "--limit-s", "0")[0] == 2


def test_of_a_notebook_definitions_run_and_the_last_one_counts(tmp_path: Path) -> None:
    file = write_notebook(
        tmp_path,
        "%matplotlib inline\nimport numpy as np\nn = 3",
        "this is no Python",
        TOP_LEFT,
        "print(offset_mask(n, 7))\nraise SystemExit",
        RIGHT,
        "check(offset_mask)",
    )
    assert verdict(file)["verdict"] == "passed"
    broken = write_notebook(tmp_path, "def offset_mask(a, b):\n    return (", name="broken.ipynb")
    assert "broken.ipynb, code cell 1 does not parse, line 2" in verdict(broken)["message"]
    with pytest.raises(Unusable, match="defines no offset_mask"):
        load("offset_mask", write_notebook(tmp_path, "x = 1"))


def test_exercises_are_listed(tmp_path: Path) -> None:
    status, out, _ = run("exercises", "--json")
    rows = json.loads(out)
    assert status == 0
    assert [list(row) for row in rows] == [["id", "lesson", "signature", "points"]] * len(cards())
    assert "offset_mask(n_new, n_total)" in run("exercises")[1]


def test_hints_come_in_steps(capsys: pytest.CaptureFixture[str]) -> None:
    notebook._hints_given.clear()
    for _ in range(4):
        hint("offset_mask")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == [f"offset_mask, hint {i} of 3" for i in (1, 2, 3, 1)]
    assert run("hint", "offset_mask")[1].splitlines() == lines[:3]
    assert run("hint", "offset_mask", "--step", "2")[1].splitlines() == lines[1:2]
    assert run("hint", "offset_mask", "--step", "9")[::2] == (1, "offset_mask has 3 hints, there is no step 9\n")
    assert run("hint", "nonsense")[0] == 1


def test_untouched_exercises_are_known_without_running_them() -> None:
    for name, card in cards().items():
        cells = read_cells(ROOT / "exercises" / f"{card.lesson}.ipynb")
        assert is_untouched(name, cells), name
        assert not is_untouched(name, read_cells(ROOT / "solutions" / f"{card.lesson}.ipynb")), name


def test_progress_counts_what_is_passed(tmp_path: Path) -> None:
    assert {row["verdict"] for row in progress_rows(ROOT / "exercises")} == {"not_attempted"}
    shipped = nbformat.read(ROOT / "exercises" / "03_offset_mask.ipynb", as_version=4)
    for cell in shipped.cells:
        if "def offset_mask" in cell.source:
            cell.source = RIGHT
    nbformat.write(shipped, tmp_path / "03_offset_mask.ipynb")
    rows = {row["exercise"]: row["verdict"] for row in progress_rows(tmp_path)}
    assert rows == {"offset_mask": "passed", "rotate": "not_attempted", "append_rotated": "not_attempted"}
    assert "2 of 7" in progress_table(progress_rows(tmp_path))
    assert "2 of 7" in run("progress", tmp_path)[1]
    (tmp_path / "empty").mkdir()
    assert run("progress", tmp_path / "empty")[0] == 1
    (tmp_path / "01_attention.ipynb").write_text("{")
    write_notebook(tmp_path, "x = 1", name="00_start_here.ipynb")
    table = progress_table(progress_rows(tmp_path))
    assert "softmax cannot be read" in table and "count_tokens is not there" in table


def test_a_wrong_call_of_check_is_one_line_and_strict_runs_still_stop(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KVLAB_STRICT", raising=False)
    check(3)  # type: ignore[arg-type]
    check(top_left)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "check: expected a function or a class, got int"
    assert lines[1].startswith("check: no exercise is called 'top_left'")
    monkeypatch.setenv("KVLAB_STRICT", "1")
    with pytest.raises(CheckFailed, match="got int"):
        check(3)  # type: ignore[arg-type]


def test_a_large_array_is_shown_by_an_entry_that_differs() -> None:
    probe = exercise("softmax").probes[0]
    text = in_words(np.zeros((7, 24)), np.ones((7, 24)))
    assert "168 of 168 entries differ" in text
    failure = Failure(exercise("softmax").stages[0], probe, "out", np.zeros((7, 24)), np.eye(7, 24))
    shown = str(Report(cards()["softmax"], Outcome("incorrect", (), failure)))
    assert "expected  out[0, 0] of shape (7, 24): 0" in shown and "yours     out[0, 0] of shape (7, 24): 1" in shown


@pytest.mark.parametrize(
    "value", ["np.ma.masked_array(mask)", "[[True]]", "nested()"], ids=["masked array", "list", "list in itself"]
)
def test_unusual_values_are_named_for_what_they_are(tmp_path: Path, value: str) -> None:
    text = (
        "import numpy as np\ndef nested():\n    a = []\n    a.append(a)\n    return a\n"
        "def offset_mask(n_new, n_total):\n    mask = np.tri(n_total, dtype=bool)[n_total - n_new :]\n"
        f"    return {value}\n"
    )
    answer = verdict(write(tmp_path, text))
    assert answer["verdict"] == "incorrect"
    assert "got a list or tuple" in answer["message"] or "an object of type MaskedArray" in answer["message"]


def test_control_characters_of_a_submission_do_not_reach_the_terminal(tmp_path: Path) -> None:
    text = "def offset_mask(n_new, n_total):\n    raise ValueError('\\x1b[31mred')\n"
    assert "\x1b" not in verdict(write(tmp_path, text))["message"]


def right(n_new: int, n_total: int) -> Any:
    return np.tri(n_total, dtype=bool)[n_total - n_new :]


def top_left(n_new: int, n_total: int) -> Any:
    return np.tril(np.ones((n_new, n_total), bool))


def test_check_shows_text_and_a_picture_in_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    found = notebook.report(top_left, "offset_mask")
    data, metadata = found._repr_mimebundle_()
    assert "<svg" in data["text/html"] and "top-left corner" in data["text/html"]
    assert "query at position 4 may see key 0" in metadata["text/html"]["alt"]
    assert data["text/plain"] == str(found)
    data, metadata = notebook.report(right, "offset_mask")._repr_mimebundle_()
    assert "<svg" not in data["text/html"] and metadata == {}


def test_pictures_of_numbers_carry_alt_text() -> None:
    def softmax(x: Any) -> Any:
        return np.exp(x)

    data, metadata = notebook.report(softmax)._repr_mimebundle_()
    assert f'<img alt="{metadata["text/html"]["alt"]}"' in data["text/html"]
    assert "entries differ" in metadata["text/html"]["alt"]


@pytest.mark.parametrize("variable", ["KVLAB_STRICT=1", "NBGRADER_EXECUTION=autograde"])
def test_strict_runs_raise_unless_passed(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    for name in ("KVLAB_STRICT", "NBGRADER_EXECUTION"):
        monkeypatch.delenv(name, raising=False)
    check(top_left, "offset_mask")
    monkeypatch.setenv(*variable.split("="))
    check(right, "offset_mask")
    with pytest.raises(CheckFailed, match="top-left corner"):
        check(top_left, "offset_mask")


def test_numpy_exercises_never_load_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from kvlab.checks.files import check_files; from pathlib import Path\n"
        f"answer = next(check_files('offset_mask', [Path({str(write(tmp_path, RIGHT))!r})]))\n"
        "print(answer['verdict'], 'torch' in sys.modules)"
    )
    environment = {k: v for k, v in os.environ.items() if k != "KVLAB_STRICT"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.split() == ["passed", "False"]


# `yours`: a lesson that goes on with what the learner wrote


def test_a_lesson_goes_on_with_your_own_solution_once_it_passes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for text, said in (
        (RIGHT, "offset_mask: yours, from 03_offset_mask.ipynb"),
        (TOP_LEFT, "offset_mask: the course's own; 03_offset_mask.ipynb: incorrect"),
        (HEAD + "    raise NotImplementedError('offset_mask: ...')\n", "not attempted"),
        ("import os\n\ndef offset_mask(n_new, n_total):\n    os._exit(0)\n", "your code raised"),
    ):
        write_notebook(tmp_path, text, name="03_offset_mask.ipynb")
        found = yours("offset_mask", None, tmp_path)
        assert (found is not None) == (text == RIGHT)
        assert said in capsys.readouterr().out
    assert yours("offset_mask", "ours", tmp_path / "elsewhere") == "ours"
    assert capsys.readouterr().out == "offset_mask: the course's own; 03_offset_mask.ipynb: not there\n"
