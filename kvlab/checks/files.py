"""Check exercises in files: find the function, run it in a process of its own, and come back with a report.

This keeps an accident from spreading (an endless loop, `os._exit`, prints). It is not a wall against a submission that
attacks the checker: the child that runs the learner's code also compares the results.
"""

import ast
import json
import linecache
import os
import select
import signal
import time
import types
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvlab.checks import notebook
from kvlab.checks.engine import LIMIT_S
from kvlab.checks.limits import OutOfTime, learner_line, time_limit
from kvlab.checks.registry import UnknownExercise, card, cards, exercise
from kvlab.checks.report import VERDICTS

GRACE_S = 5.0  # for a child that is past its limit to say so itself, before it is ended


class Unusable(Exception):
    """A file that cannot be checked; the message is one line."""


@dataclass(frozen=True)
class Cell:
    """A piece of a file's source, with the file name its tracebacks show."""

    source: str
    name: str


def check_files(name: str, files: list[Path], limit_s: float = LIMIT_S) -> Iterator[dict[str, Any]]:
    """Check one exercise in several files; yields one JSON object a file, in order (DESIGN of the command line).

    Each file runs in a child forked from this process, so that all pay for one start-up. A file that is no use gets
    the verdict "error" and one line.
    """
    try:
        facts = card(name)
        exercise(name)  # loads the lesson's checks (and torch, where it needs it) before the fork
    except UnknownExercise as error:
        for file in files:
            yield _error(str(file), name, 0, str(error))
        return
    for file in files:
        yield _in_child(name, file, limit_s) or _error(
            str(file), name, facts.points, f"{name}: the code ended the process that checked it", verdict="error"
        )


def _error(file: str, name: str, max_points: int, message: str, verdict: str = "error") -> dict[str, Any]:
    return {
        "file": file,
        "exercise": name,
        "verdict": verdict,
        "points": 0,
        "max_points": max_points,
        "mistake": None,
        "message": message,
    }


def _in_child(name: str, file: Path, limit_s: float) -> dict[str, Any] | None:
    """Fork, check, read one JSON object; None when the child died without a word."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        os.close(reader)
        with suppress(BaseException):
            _child(name, file, limit_s, writer)
        os._exit(0)
    os.close(writer)
    try:
        answer = _read_all(reader, limit_s + GRACE_S)
    finally:
        os.close(reader)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    if answer is None:
        return _error(str(file), name, card(name).points, f"{name}: no answer within {limit_s:g} s", "timeout")
    try:
        return json.loads(answer)
    except ValueError:
        return None


def _child(name: str, file: Path, limit_s: float, writer: int) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):  # what the learner prints must not mix with the verdict
        os.dup2(null, stream)
    with open(os.devnull, "w") as quiet, redirect_stdout(quiet), redirect_stderr(quiet):
        answer = check_file(name, file, limit_s)
    answer["message"] = "".join(c if c.isprintable() or c == "\n" else "?" for c in answer["message"])
    with os.fdopen(writer, "w") as out:
        json.dump(answer, out)


def _read_all(reader: int, limit_s: float) -> str | None:
    """Read until the writer closes; None when that takes longer than the limit."""
    deadline = time.monotonic() + limit_s
    parts: list[bytes] = []
    while True:
        ready, _, _ = select.select([reader], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return None
        part = os.read(reader, 1 << 16)
        if not part:
            return b"".join(parts).decode("utf-8", "replace")
        parts.append(part)


def check_file(name: str, file: Path, limit_s: float = LIMIT_S) -> dict[str, Any]:
    """Check one exercise of one file in this process; the JSON object of `kvlab check --json`."""
    facts = card(name)
    try:
        with time_limit(limit_s):
            submission = load(name, file)
        found = notebook.report(submission, name, limit_s)
    except OutOfTime:
        return _error(str(file), name, facts.points, f"{name}: {file.name} runs past {limit_s:g} s", "timeout")
    except (Unusable, TypeError) as error:
        return _error(str(file), name, facts.points, f"{name}: {error}")
    except NotImplementedError:
        return _error(str(file), name, facts.points, f"{name}: not attempted", "not_attempted")
    except (Exception, SystemExit) as error:
        where = learner_line(error)
        text = f"{name}: {file.name} raised {type(error).__name__}: {error}" + (f" at {where}" if where else "")
        return _error(str(file), name, facts.points, text.replace("\n", " "))
    return found.as_json(str(file))


def load(name: str, file: Path) -> Any:
    """The object called `name` that a `.py` or `.ipynb` file defines; of several definitions the last one counts.

    A script runs as it stands. Of a notebook the imports, definitions and assignments run, nothing else: its other
    cells are the learner's trials.

    Raises:
        Unusable: no such file, not readable, does not parse, empty, or nothing of that name in it.
    """
    cells = read_cells(file)
    if not any(cell.source.strip() for cell in cells):
        raise Unusable(f"{file.name} is empty")
    module = types.ModuleType("submission")
    for cell in cells:
        tree = _parse(cell, name, file)
        if tree is None:
            continue
        linecache.cache[cell.name] = (len(cell.source), None, cell.source.splitlines(keepends=True), cell.name)
        if file.suffix == ".py":
            exec(compile(tree, cell.name, "exec"), module.__dict__)
        else:
            _run_definitions(tree, cell.name, module.__dict__)
    if name not in module.__dict__:
        defined = [k for k, v in vars(module).items() if getattr(v, "__module__", "") == "submission"]
        raise Unusable(f"{file.name} defines no {name}; it defines {', '.join(defined) or 'nothing'}")
    return module.__dict__[name]


def read_cells(file: Path) -> list[Cell]:
    """A script as one cell, a notebook as its code cells with IPython's own lines (`%`, `!`) left blank.

    Raises:
        Unusable: see `load`.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise Unusable(f"{file} cannot be read: {reason}") from None
    if file.suffix == ".py":
        return [Cell(text, str(file))]
    if file.suffix != ".ipynb":
        raise Unusable(f"{file.name}: expected a .py or .ipynb file")
    if not text.strip():
        return []
    try:
        code = [c for c in json.loads(text)["cells"] if c["cell_type"] == "code"]
        sources = [c["source"] if isinstance(c["source"], str) else "".join(c["source"]) for c in code]
    except (ValueError, KeyError, TypeError):
        raise Unusable(f"{file.name} is not a notebook: expected JSON with a list of cells") from None
    return [Cell(_without_magics(s), f"{file.name}, code cell {i + 1}") for i, s in enumerate(sources)]


def _without_magics(source: str) -> str:
    lines = source.splitlines(keepends=True)
    return "".join("\n" if line.lstrip().startswith(("%", "!")) else line for line in lines)


def _parse(cell: Cell, name: str, file: Path) -> ast.Module | None:
    """The cell's syntax tree. A notebook's cell that does not parse is passed over unless it holds the exercise."""
    try:
        return ast.parse(cell.source, cell.name)
    except (SyntaxError, ValueError) as error:
        if file.suffix == ".ipynb" and f"def {name}" not in cell.source and f"class {name}" not in cell.source:
            return None
        line = f"line {error.lineno}: " if isinstance(error, SyntaxError) else ""
        text = error.msg if isinstance(error, SyntaxError) else str(error)
        raise Unusable(f"{cell.name} does not parse, {line}{text}") from None


def _run_definitions(tree: ast.Module, name: str, namespace: dict[str, Any]) -> None:
    definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)
    for node in tree.body:
        one = ast.Module([node], type_ignores=[])
        if isinstance(node, definitions):
            exec(compile(one, name, "exec"), namespace)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            with suppress(Exception):  # a trial that fails is no reason to refuse the definitions around it
                exec(compile(one, name, "exec"), namespace)


def is_untouched(name: str, cells: list[Cell]) -> bool:
    """Whether the last definition of `name` still holds the stub's `raise NotImplementedError`; runs nothing."""
    last = None
    for cell in cells:
        with suppress(SyntaxError, ValueError):
            for node in ast.parse(cell.source).body:
                if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == name:
                    last = node
    if last is None:
        return False
    raises = [n for n in ast.walk(last) if isinstance(n, ast.Raise) and n.exc is not None]
    functions = (
        [last] if isinstance(last, ast.FunctionDef) else [n for n in last.body if isinstance(n, ast.FunctionDef)]
    )
    return bool(raises) and all(_is_stub(f) for f in functions)


def _is_stub(function: ast.FunctionDef) -> bool:
    body = [n for n in function.body if not (isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant))]
    return len(body) == 1 and isinstance(body[0], ast.Raise) and "NotImplementedError" in ast.dump(body[0])


def yours(name: str, otherwise: Any, folder: Path | str = "../exercises") -> Any:
    """Your own solution of an exercise, taken from its saved notebook, if it passes its check; else `otherwise`.

    A line says which it is. The check runs in a process of its own; what passes is then loaded into this one.

    Args:
        name: of the exercise, such as "KVCache".
        otherwise: what to use as long as yours does not pass.
        folder: where the exercise notebooks are, seen from the notebook that asks.

    Raises:
        UnknownExercise: no exercise is called that.
    """
    file = Path(folder) / f"{card(name).lesson}.ipynb"
    answer = next(check_files(name, [file]))
    if answer["verdict"] == "passed":
        print(f"{name}: yours, from {file.name}")
        return load(name, file)
    why = VERDICTS[answer["verdict"]] if file.exists() else "not there"
    print(f"{name}: the course's own; {file.name}: {why}")
    return otherwise


def progress_rows(folder: Path) -> list[dict[str, Any]]:
    """One row an exercise that `folder` has a notebook for: its lesson, name, verdict and points.

    Raises:
        Unusable: the folder holds no exercise notebook.
    """
    rows: list[dict[str, Any]] = []
    for facts in cards().values():
        file = folder / f"{facts.lesson}.ipynb"
        if not file.exists():
            continue
        verdict, points = _standing(facts.id, file)
        row = {"lesson": facts.lesson, "exercise": facts.id, "verdict": verdict}
        rows.append(row | {"points": points, "max_points": facts.points})
    if not rows:
        raise Unusable(f"{folder} holds no exercise notebook: name the folder that does, such as exercises")
    return rows


def _standing(name: str, file: Path) -> tuple[str, int]:
    """Verdict and points of one exercise of a notebook, "unreadable" or "missing" where there is nothing to check."""
    try:
        cells = read_cells(file)
    except Unusable:
        return "unreadable", 0
    if not any(f"def {name}(" in cell.source or f"class {name}" in cell.source for cell in cells):
        return "missing", 0
    if is_untouched(name, cells):
        return "not_attempted", 0
    answer = next(check_files(name, [file]))
    return answer["verdict"], answer["points"]


def progress_table(rows: list[dict[str, Any]]) -> str:
    """`progress_rows` as text, a line a lesson, and the sum."""
    lines = []
    for lesson in dict.fromkeys(row["lesson"] for row in rows):
        of_lesson = [row for row in rows if row["lesson"] == lesson]
        points, most = (sum(row[k] for row in of_lesson) for k in ("points", "max_points"))
        words = VERDICTS | {"unreadable": "cannot be read", "missing": "is not there"}
        each = ", ".join(f"{row['exercise']} {words[row['verdict']]}" for row in of_lesson)
        lines.append(f"{lesson:<22}{points:>3} of {most:<3} {each}")
    points, most = (sum(row[k] for row in rows) for k in ("points", "max_points"))
    return "\n".join([*lines, f"{'all':<22}{points:>3} of {most:<3}"])
