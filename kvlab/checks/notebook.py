"""`check`, `hint` and `progress` as a notebook uses them."""

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvlab.checks.engine import Outcome, examine
from kvlab.checks.registry import UnknownExercise, card, exercise
from kvlab.checks.report import Report

_hints_given: Counter[str] = Counter()


class CheckFailed(AssertionError):
    """Raised instead of shown where anything but "passed" must stop a run: KVLAB_STRICT=1, or nbgrader's autograder."""


def report(submission: Callable[..., Any], name: str | None = None, limit_s: float | None = None) -> Report:
    """Check a function or class without displaying anything.

    Args:
        submission: the learner's function or class.
        name: the exercise; its own name when left out.
        limit_s: seconds for all of its probes.

    Raises:
        UnknownExercise: no exercise has that name.
        TypeError: what was handed in is not a function or class.
    """
    if not callable(submission):
        raise TypeError(f"expected a function or a class, got {type(submission).__name__}")
    name = name or str(getattr(submission, "__name__", ""))
    found, facts = exercise(name), card(name)
    if found.is_class != isinstance(submission, type):
        want, got = ("a class", "a function") if found.is_class else ("a function", "a class")
        raise TypeError(f"expected {want}, got {got}")
    outcome: Outcome = examine(found, submission, limit_s) if limit_s else examine(found, submission)
    return Report(facts, outcome)


def check(submission: Callable[..., Any], name: str | None = None) -> None:
    """Check an exercise and show what was found; in strict runs raise unless it passed.

    Raises:
        CheckFailed: KVLAB_STRICT=1 or NBGRADER_EXECUTION=autograde is set, and the verdict is not "passed".
    """
    from IPython.display import display

    try:
        found = report(submission, name)
    except (UnknownExercise, TypeError) as error:
        if _strict():
            raise CheckFailed(f"check: {error}") from None
        print(f"check: {error}")
        return
    if found.outcome.verdict != "passed" and _strict():
        raise CheckFailed(str(found))
    display(found)


def hint(name: str | Callable[..., Any]) -> None:
    """Print the next hint for an exercise, given by name or as the function itself.

    Each call goes one step further, then starts again. An unknown name gets a line with the nearest ones.
    """
    name = name if isinstance(name, str) else str(getattr(name, "__name__", name))
    try:
        hints = card(name).hints
    except UnknownExercise as error:
        print(f"hint: {error}")
        return
    i = _hints_given[name] % len(hints)
    _hints_given[name] += 1
    print(f"{name}, hint {i + 1} of {len(hints)}: {hints[i]}")


def progress(folder: str = ".") -> None:
    """Print what is passed in the exercise notebooks of a folder, as they are saved. The same as `kvlab progress`."""
    from kvlab.checks.files import Unusable, progress_rows, progress_table

    try:
        print(progress_table(progress_rows(Path(folder))))
    except Unusable as error:
        print(error)


def _strict() -> bool:
    return os.environ.get("KVLAB_STRICT") == "1" or os.environ.get("NBGRADER_EXECUTION") == "autograde"
