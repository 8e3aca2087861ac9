"""The exercises by name: their cards from `lesson_NN.toml`, their checks from the module beside it."""

import difflib
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path

from kvlab.checks.model import Exercise


class UnknownExercise(ValueError):
    """No exercise has that name; the message gives the nearest ones."""


@dataclass(frozen=True)
class Card:
    """What an exercise's card says; the TOML file is the one home of these facts.

    lesson: the notebook's stem.
    signature, shapes: as the design of the course fixes them.
    lines: what a short solution takes.
    hints: from a nudge to nearly there; none is the solution.
    """

    id: str
    lesson: str
    signature: str
    shapes: str
    points: int
    minutes: int
    lines: int
    hints: tuple[str, ...]


@cache
def cards() -> dict[str, Card]:
    """Every exercise's card, in the order of the course. Loads no lesson, and so never torch."""
    files = sorted(Path(__file__).parent.glob("lesson_[0-9][0-9].toml"))
    entries = [e for file in files for e in tomllib.loads(file.read_text(encoding="utf-8"))["exercise"]]
    return {e["id"]: Card(**(e | {"hints": tuple(e["hints"])})) for e in entries}


def card(name: str) -> Card:
    """One exercise's card.

    Raises:
        UnknownExercise: with the nearest names.
    """
    known = cards()
    if name in known:
        return known[name]
    folded = {k.lower(): k for k in known}
    near = [folded[k] for k in difflib.get_close_matches(str(name).lower(), list(folded), n=3, cutoff=0.5)]
    nearest = f"the nearest are {', '.join(near)}" if near else f"the exercises are {', '.join(known)}"
    raise UnknownExercise(f"no exercise is called {name!r}: {nearest}")


@cache
def exercise(name: str) -> Exercise:
    """One exercise's check, from `kvlab.checks.lesson_NN`.

    Raises:
        UnknownExercise: with the nearest names.
    """
    module = import_module(f"kvlab.checks.lesson_{card(name).lesson[:2]}")
    return next(e for e in module.EXERCISES if e.id == name)
