"""What an exercise's check is made of: probes in stages, a reference, and mistakes that are run, not described.

A probe drives a submission and returns what it observed, in words: `{"the mask": array, "the input": "unchanged"}`.
The same probe drives the reference (what is expected) and every mistake (what a misunderstanding would give), so that
one comparison decides both whether the code is right and which mistake it behaves like.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Observation = dict[str, Any]


class Malformed(Exception):
    """A submission gave back something a probe cannot go on with; the message is shown to the learner as it is."""


@dataclass(frozen=True)
class Raised:
    """An exception as an observation: its class and the classes above it, its text, and the learner's own line."""

    kinds: tuple[str, ...]
    text: str = ""
    where: str = ""

    def __str__(self) -> str:
        return f"raised {self.kinds[0]}" + (f": {self.text}" if self.text else "")


@dataclass(frozen=True)
class Probe:
    """One input, or one short use of a class.

    describe: the input as the learner would type it.
    run: drives a submission, returns what it observed; keys are phrases that a message can show.
    tolerance: relative and absolute, 1e-9 for float64 inputs and 1e-4 for float32.
    """

    describe: str
    run: Callable[[Any], Observation]
    tolerance: float = 1e-9


@dataclass(frozen=True)
class Stage:
    """Probes of one mechanism, the smallest input first. `says` completes "works: ..." and "fails: ..."."""

    says: str
    probes: Sequence[Probe]


@dataclass(frozen=True)
class Mistake:
    """A wrong implementation that looks right.

    id: snake case, unique within the exercise.
    sentence: what someone who wrote this believes that is not so.
    question: one question that leads out of it; it does not give the solution away.
    wrong: the implementation, of the exercise's own signature; with `fresh`, a function that makes it anew, for a
        mistake that lies in state which outlives one run.
    """

    id: str
    sentence: str
    question: str
    wrong: Any
    fresh: bool = False

    def submission(self) -> Any:
        """The wrong implementation, as if just typed in."""
        return self.wrong() if self.fresh else self.wrong


@dataclass(frozen=True)
class Exercise:
    """A check: the reference, the stages from basic to subtle, the mistakes to recognise.

    is_class: the learner hands in a class, not a function.
    """

    id: str
    reference: Any
    stages: Sequence[Stage]
    mistakes: Sequence[Mistake] = field(default_factory=tuple)
    is_class: bool = False

    @property
    def probes(self) -> list[Probe]:
        """All probes, in order."""
        return [probe for stage in self.stages for probe in stage.probes]


def call(
    describe: str,
    *args: Any,
    tolerance: float = 1e-9,
    key: str = "the result",
    check_inputs: bool = True,
    named: Mapping[str, Any] | None = None,
) -> Probe:
    """A probe that calls a function once on its own copy of the arguments and sees whether it changed them.

    Args:
        describe: how the call is shown, such as "offset_mask(3, 7)".
        args: handed over as deep copies; `named` those given by keyword.
        tolerance: see Probe.
        key: what the result is called in messages.
        check_inputs: observe too whether the arguments came back unchanged.
    """

    def run(submission: Any) -> Observation:
        given = copy.deepcopy(args)
        seen: Observation = {key: observe(submission(*given, **copy.deepcopy(dict(named or {}))))}
        if check_inputs:
            unchanged = all(same(observe(a), observe(b), 0.0) for a, b in zip(args, given, strict=True))
            seen["the input afterwards"] = "unchanged" if unchanged else "changed"
        return seen

    return Probe(describe, run, tolerance)


def pair(value: Any, what: str) -> tuple[Any, Any]:
    """Unpack what should be two things, or say in the learner's words what came instead."""
    if isinstance(value, (tuple, list)) and len(value) == 2:
        return value[0], value[1]
    got = "None (is a return missing?)" if value is None else type(value).__name__
    raise Malformed(f"{what}: expected a pair of two values, got {got}")


def observe(value: Any, depth: int = 0) -> Any:
    """Turn a submission's value into plain data: arrays, numbers, strings, tuples. Anything else becomes its type.

    Nothing of the submission's own classes survives, so that an object whose `__eq__` always answers True compares
    as what it is.
    """
    if value is None or type(value) in (bool, int, float, str, Raised):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray) and not isinstance(value, np.ma.MaskedArray):
        return np.array(value, subok=False)
    if type(value).__module__.split(".")[0] == "torch" and hasattr(value, "detach"):
        tensor = value.detach().cpu()
        return tensor.float().numpy().copy() if str(tensor.dtype) == "torch.bfloat16" else tensor.numpy().copy()
    if depth > 4:  # nothing that an exercise asks for lies so deep; a list may hold itself
        return f"a {type(value).__name__} inside of others"
    if isinstance(value, tuple):  # a named tuple too, by its own items and not by what a subclass says they are
        return tuple(observe(v, depth + 1) for v in tuple.__iter__(value))
    if type(value) is list:
        return tuple(observe(v, depth + 1) for v in value)
    if isinstance(value, Mapping):
        return {str(k): observe(v, depth + 1) for k, v in value.items()}
    return f"an object of type {type(value).__name__}"


def same(expected: Any, got: Any, tolerance: float) -> bool:
    """Whether an observation is the expected one.

    Arrays: same shape, same kind, floats at least as wide as expected, values within the tolerance, nan where nan is
    expected. Numbers: an int is an int (a bool is not). Exceptions: the expected class or one below it.
    """
    if isinstance(expected, Raised):
        return isinstance(got, Raised) and expected.kinds[0] in got.kinds
    if isinstance(expected, dict):
        return (
            isinstance(got, dict)
            and expected.keys() == got.keys()
            and all(same(expected[k], got[k], tolerance) for k in expected)
        )
    if isinstance(expected, tuple):
        return (
            isinstance(got, tuple)
            and len(expected) == len(got)
            and all(same(e, g, tolerance) for e, g in zip(expected, got, strict=True))
        )
    if isinstance(expected, np.ndarray):
        return (
            isinstance(got, np.ndarray)
            and expected.shape == got.shape
            and kind_fits(expected, got)
            and np.allclose(got, expected, rtol=tolerance, atol=tolerance, equal_nan=True)
        )
    if type(expected) is float:
        return type(got) in (int, float) and bool(np.isclose(got, expected, rtol=max(tolerance, 1e-12), atol=tolerance))
    return type(expected) is type(got) and expected == got


def kind_fits(expected: np.ndarray, got: np.ndarray) -> bool:
    """bool for bool, integers for integers, floats at least as wide as expected."""
    if expected.dtype.kind in "iu":
        return got.dtype.kind in "iu"
    return got.dtype.kind == expected.dtype.kind and got.dtype.itemsize >= expected.dtype.itemsize
