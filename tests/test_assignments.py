"""Exercises are made from solutions: stubs where solutions were, the same cards, marks that nbgrader understands."""

import ast
import re
from pathlib import Path
from typing import Any

import assignments
import build
import nbformat
import pytest

from kvlab.checks.registry import cards

SOURCES = build.lesson_sources(folder="solutions")
each_source = pytest.mark.parametrize("source", SOURCES, ids=lambda p: p.stem)


def made(source: Path) -> tuple[Any, Any]:
    """The solution and the exercise notebook of a source, not executed."""
    solution, exercise = build.notebooks_of(source).values()
    return solution, exercise


def test_every_lesson_has_its_exercises() -> None:
    assert [s.stem for s in SOURCES] == [s.stem for s in build.lesson_sources()]
    assert [s.stem for s in SOURCES] == list(dict.fromkeys(card.lesson for card in cards().values()))


@each_source
def test_an_exercise_holds_stubs_and_nothing_of_the_solution(source: Path) -> None:
    solution, exercise = made(source)
    text = "\n".join(c.source for c in exercise.cells)
    assert "SOLUTION" not in text
    hidden = re.findall(r"### BEGIN SOLUTION\n(.*?)### END SOLUTION", "\n".join(c.source for c in solution.cells), re.S)
    assert hidden
    for line in {line.strip() for part in hidden for line in part.splitlines()}:
        # Short lines such as `return out` say nothing; what takes thought must not stand in the exercise.
        assert len(line) < 30 or line not in text, line
    for card in (c for c in cards().values() if c.lesson == source.stem):
        assert f'NotImplementedError("{card.id}' in text


@each_source
def test_an_exercise_as_shipped_has_no_outputs_and_its_card_agrees_with_its_points(source: Path) -> None:
    _, exercise = made(source)
    shipped = nbformat.read(build.ROOT / "exercises" / f"{source.stem}.ipynb", as_version=4)
    assert nbformat.writes(shipped) == nbformat.writes(exercise)
    graded = {c.metadata.nbgrader.grade_id: c.metadata.nbgrader for c in exercise.cells if "nbgrader" in c.metadata}
    text = "\n".join(c.source for c in exercise.cells)
    for card in (c for c in cards().values() if c.lesson == source.stem):
        solution, check = graded[card.id], graded[f"check_{card.id}"]
        assert (solution.solution, solution.grade, solution.locked) == (True, False, False)
        assert (check.solution, check.grade, check.locked, check.points) == (False, True, True, card.points)
        assert f"`{card.signature}`" in text


@each_source
def test_stub_and_card_have_the_same_parameters(source: Path) -> None:
    """What the learner finds in the stub is what the check will call."""
    _, exercise = made(source)
    tree = ast.parse("\n".join(c.source for c in exercise.cells if c.cell_type == "code"))
    for card in (c for c in cards().values() if c.lesson == source.stem):
        node = next(n for n in tree.body if getattr(n, "name", "") == card.id)
        if isinstance(node, ast.ClassDef):
            node = next(n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__")
        assert isinstance(node, ast.FunctionDef)
        names = [a.arg for a in node.args.args if a.arg != "self"]
        assert names == [p.split("=")[0].strip() for p in card.signature.partition("(")[2].rstrip(")").split(",")]


def test_a_class_gets_a_stub_in_every_method() -> None:
    text = (
        "class A:\n    def __init__(self):\n        ### BEGIN SOLUTION\n        self.x = 1\n        ### END SOLUTION\n"
        "    def get(self):\n        ### BEGIN SOLUTION\n        def inner():\n            return 2\n"
        "        return inner()\n        ### END SOLUTION\n"
    )
    cleared = assignments.clear(text)
    assert 'raise NotImplementedError("A.__init__: replace this line by your code")' in cleared
    assert 'raise NotImplementedError("A.get: replace this line by your code")' in cleared
    assert "self.x" not in cleared and "inner" not in cleared


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("### BEGIN SOLUTION\nx = 1", "unbalanced marks"),
        ("x = 1\n### END SOLUTION", "unbalanced marks"),
        ("### BEGIN SOLUTION\n### BEGIN SOLUTION\n### END SOLUTION\n### END SOLUTION", "unbalanced marks"),
        ("### BEGIN SOLUTION\nx = 1 ### END SOLUTION", "unbalanced marks"),
        ("#### BEGIN SOLUTION\nx = 1", "expected a mark alone on its line"),
    ],
)
def test_unbalanced_marks_fail_the_build(body: str, message: str) -> None:
    with pytest.raises(assignments.BadSource, match=rf"03_x\.py, cell 2: {message}"):
        assignments.has_solution(body, "03_x.py, cell 2")


def source_with(tmp_path: Path, text: str) -> Path:
    source = tmp_path / "solutions" / "src" / "00_start_here.py"
    source.parent.mkdir(parents=True)
    source.write_text(text)
    return source


SOLVED = "# %%\ndef count_tokens(k):\n    ### BEGIN SOLUTION\n    return k.shape[1]\n    ### END SOLUTION\n\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (SOLVED, r"checks for \[\], the lesson's TOML lists \['count_tokens'\]"),
        ("# %%\ncheck(count_tokens)\n", r"solution cells for \[\]"),
        ("# %% [markdown]\n# {card nonsense}\n", "no exercise is called 'nonsense'"),
        (SOLVED.replace("count_tokens", "other"), "expected a solution cell to define one exercise, got other"),
    ],
)
def test_a_source_that_lacks_a_part_fails_the_build(tmp_path: Path, text: str, message: str) -> None:
    source = source_with(tmp_path, text)
    with pytest.raises(assignments.BadSource, match=message):
        assignments.prepare(build.read_source(source), source)
