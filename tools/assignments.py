"""Turn a solution's percent script into its notebooks: the exercise with stubs, and the solution.

`solutions/src/NN_name.py` is the one source. In a solution cell the lines between `### BEGIN SOLUTION` and
`### END SOLUTION` become one `raise NotImplementedError(...)`; a line `{card NAME}` in text becomes the facts of
`kvlab/checks/lesson_NN.toml`; cells tagged `exercise-only` are left out of the solution. Both notebooks carry the
metadata by which nbgrader knows what is graded.
"""

import ast
import copy
import re
from pathlib import Path
from typing import Any

from kvlab.checks.registry import cards

BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"
CHECK = re.compile(r"check\((\w+)\)\s*\Z")


class BadSource(ValueError):
    """A source that cannot be built; the message names the file, the cell and the fault."""


def prepare(notebook: Any, source: Path) -> Any:
    """Fill in the cards and the nbgrader metadata of a notebook read from a solution source.

    Raises:
        BadSource: unbalanced marks, an unknown card, a solution cell that defines no exercise, or an exercise of the
            lesson without its solution cell or its check.
    """
    solved, checked = [], []
    for i, cell in enumerate(notebook.cells):
        where = f"{source.name}, cell {i}"
        if cell.cell_type == "markdown":
            for name in re.findall(r"^\{card (\w+)\}$", cell.source, flags=re.MULTILINE):
                cell.source = cell.source.replace(f"{{card {name}}}", _card(name, where))
        elif has_solution(cell.source, where):
            solved.append(_exercise_in(cell.source, where))
            cell.metadata["nbgrader"] = _nbgrader(solved[-1], solution=True)
        elif match := CHECK.match(cell.source):
            checked.append(match[1])
            cell.metadata["nbgrader"] = _nbgrader(f"check_{match[1]}", points=cards()[match[1]].points)
    wanted = [c.id for c in cards().values() if c.lesson == source.stem]
    for found, what in ((solved, "solution cells"), (checked, "checks")):
        if found != wanted:
            raise BadSource(f"{source.name}: {what} for {found}, the lesson's TOML lists {wanted}, in that order")
    return notebook


def exercise_of(prepared: Any) -> Any:
    """The notebook that a learner gets: every solution replaced by a stub."""
    notebook = copy.deepcopy(prepared)
    for cell in notebook.cells:
        if cell.metadata.get("nbgrader", {}).get("solution"):
            cell.source = clear(cell.source)
    return notebook


def solution_of(prepared: Any) -> Any:
    """The notebook with the solutions in, without the cells that only a learner needs."""
    notebook = copy.deepcopy(prepared)
    notebook.cells = [c for c in notebook.cells if "exercise-only" not in c.metadata.get("tags", [])]
    return notebook


def has_solution(text: str, where: str) -> bool:
    """Whether a cell holds solution marks.

    Raises:
        BadSource: a mark without its partner, or one inside another pair.
    """
    marks = [line.strip() for line in text.splitlines() if line.strip() in (BEGIN, END)]
    if marks != [BEGIN, END] * (len(marks) // 2):
        raise BadSource(f"{where}: unbalanced marks, expected pairs of {BEGIN} and {END}, got {', '.join(marks)}")
    loose = [line.strip() for line in text.splitlines() if "SOLUTION" in line and line.strip() not in (BEGIN, END)]
    if loose:
        raise BadSource(f"{where}: expected a mark alone on its line, got {loose[0]!r}")
    return bool(marks)


def clear(text: str) -> str:
    """Replace each marked part by a raise that names the function (and the class) it stands in.

    >>> print(clear("def f(x):\\n    ### BEGIN SOLUTION\\n    return x\\n    ### END SOLUTION"))
    def f(x):
        raise NotImplementedError("f: replace this line by your code")
    """
    kept: list[str] = []
    names: dict[int, str] = {}  # indentation -> the name defined there
    inside = False
    for line in text.splitlines():
        bare, indent = line.strip(), len(line) - len(line.lstrip())
        if bare == END:
            inside = False
        elif bare == BEGIN:
            inside = True
            path = ".".join(names[k] for k in sorted(names) if k < indent)
            kept.append(f'{" " * indent}raise NotImplementedError("{path}: replace this line by your code")')
        elif not inside:
            if match := re.match(r"(?:def|class) (\w+)", bare):
                names = {k: v for k, v in names.items() if k < indent} | {indent: match[1]}
            kept.append(line)
    return "\n".join(kept)


def _card(name: str, where: str) -> str:
    if name not in cards():
        raise BadSource(f"{where}: no exercise is called {name!r} in the TOML files")
    card = cards()[name]
    lines = "1 line" if card.lines == 1 else f"{card.lines} lines"
    points = "1 point" if card.points == 1 else f"{card.points} points"
    return (
        f"**{card.minutes} minutes, about {lines}, {points}.**  \n"
        f"`{card.signature}`: {card.shapes}.  \n"
        f'Stuck? Run `hint("{name}")`, {len(card.hints)} steps.'
    )


def _exercise_in(text: str, where: str) -> str:
    defined = [n.name for n in ast.parse(text).body if isinstance(n, (ast.FunctionDef, ast.ClassDef))]
    found = [name for name in defined if name in cards()]
    if len(found) != 1:
        raise BadSource(f"{where}: expected a solution cell to define one exercise, got {', '.join(defined) or 'none'}")
    return found[0]


def _nbgrader(grade_id: str, solution: bool = False, points: int | None = None) -> dict[str, Any]:
    graded = points is not None
    facts = {
        "cell_type": "code",
        "grade": graded,
        "grade_id": grade_id,
        "locked": not solution,
        "schema_version": 3,
        "solution": solution,
        "task": False,
    }
    return facts | ({"points": points} if graded else {})
