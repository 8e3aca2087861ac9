"""Run an exercise's probes on a submission, compare with the reference, and name the mistake it behaves like."""

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvlab.checks.limits import OutOfTime, learner_line, time_limit
from kvlab.checks.model import Exercise, Malformed, Mistake, Observation, Probe, Raised, Stage, same

LIMIT_S = 10.0  # for all of one submission's probes; the slowest right answer needs well under a second


@dataclass(frozen=True)
class Failure:
    """The first probe that went wrong, and what was observed."""

    stage: Stage
    probe: Probe
    key: str
    expected: Any
    got: Any


@dataclass(frozen=True)
class Outcome:
    """What a check found. `verdict` is passed, incorrect, not_attempted, error or timeout."""

    verdict: str
    works: tuple[str, ...] = ()
    failure: Failure | None = None
    mistake: Mistake | None = None


def examine(exercise: Exercise, submission: Any, limit_s: float = LIMIT_S) -> Outcome:
    """Run every stage of an exercise on a submission.

    Args:
        exercise: whose stages run.
        submission: a function or class of the exercise's signature.
        limit_s: seconds for all probes together.

    Returns:
        The outcome; nothing that the submission does escapes as an exception, `KeyboardInterrupt` excepted.
    """
    seen: list[Observation | Raised] = []
    running = exercise.probes[0]
    try:
        with time_limit(limit_s):
            for running in exercise.probes:
                seen.append(run_probe(running, submission))
                if len(seen) == 1 and _is_stub(seen[0]):
                    return Outcome("not_attempted")
    except OutOfTime:
        stage = next(stage for stage in exercise.stages if running in stage.probes)
        return Outcome("timeout", failure=Failure(stage, running, "the time", None, f"no answer within {limit_s:g} s"))
    expected = _observed(exercise)
    verdict, works, failure = _first_failure(exercise, expected, seen)
    if failure is None:
        return Outcome("passed", works)
    return Outcome(verdict, works, failure, diagnose(exercise, expected, seen))


_known: dict[tuple[str, str], list[Observation | Raised]] = {}


def _observed(exercise: Exercise, which: Mistake | None = None) -> list[Observation | Raised]:
    """What the reference or a mistake shows; worked out once a process, since probes always give the same inputs."""
    key = exercise.id, which.id if which else ""
    if key not in _known:
        _known[key] = observations(exercise, which.submission() if which else exercise.reference)
    return _known[key]


def observations(exercise: Exercise, submission: Any) -> list[Observation | Raised]:
    """What every probe sees of one implementation; used for the reference and for the mistakes."""
    return [run_probe(probe, submission) for probe in exercise.probes]


def run_probe(probe: Probe, submission: Any) -> Observation | Raised:
    """One probe's observation; an exception of the submission is one too."""
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):  # what overflows shows in what is observed
            warnings.simplefilter("ignore")
            return probe.run(submission)
    except Malformed as error:
        return Raised(("Malformed",), str(error))
    except (Exception, SystemExit) as error:
        kinds = tuple(c.__name__ for c in type(error).__mro__)
        return Raised(kinds, str(error).split("\n")[0][:300], learner_line(error))


def diagnose(
    exercise: Exercise, expected: list[Observation | Raised], seen: list[Observation | Raised]
) -> Mistake | None:
    """The mistake that the submission behaves like; None when no listed one does.

    A mistake that agrees with the submission on every probe is it. Failing that, a submission may hold two faults:
    then one mistake is named if it alone agrees on every probe up to and including the first stage that fails.
    """
    probes = exercise.probes
    reached = _probes_up_to_first_failure(exercise, expected, seen)
    alike = []
    for mistake in exercise.mistakes:
        theirs = _observed(exercise, mistake)
        agrees = [same(t, s, p.tolerance) for t, s, p in zip(theirs, seen, probes, strict=True)]
        if all(agrees):
            return mistake
        if all(agrees[:reached]):
            alike.append(mistake)
    return alike[0] if len(alike) == 1 else None


def _probes_up_to_first_failure(exercise: Exercise, expected: list[Any], seen: list[Any]) -> int:
    n_done = 0
    for stage in exercise.stages:
        part = slice(n_done, n_done + len(stage.probes))
        n_done = part.stop
        tests = zip(expected[part], seen[part], stage.probes, strict=True)
        if not all(same(e, s, probe.tolerance) for e, s, probe in tests):
            break
    return n_done


def _first_failure(
    exercise: Exercise, expected: list[Any], seen: list[Any]
) -> tuple[str, tuple[str, ...], Failure | None]:
    works: list[str] = []
    i = 0
    for stage in exercise.stages:
        for probe in stage.probes:
            if not same(expected[i], seen[i], probe.tolerance):
                key, want, got = _differing(expected[i], seen[i], probe.tolerance)
                raised = isinstance(got, Raised) and got.kinds[0] != "Malformed"
                return "error" if raised else "incorrect", tuple(works), Failure(stage, probe, key, want, got)
            i += 1
        works.append(stage.says)
    return "passed", tuple(works), None


def _differing(expected: Any, got: Any, tolerance: float) -> tuple[str, Any, Any]:
    """The first entry of two observations that differs: its name, what belongs there, what came."""
    if isinstance(expected, dict) and isinstance(got, dict):
        for key, want in expected.items():
            if not same(want, got.get(key), tolerance):
                return key, want, got.get(key)
    if isinstance(expected, dict):  # the submission raised: show what belongs where it did not arrive
        key, want = next(iter(expected.items()))
        return key, want, got
    return "the call", expected, got


def _is_stub(seen: Observation | Raised) -> bool:
    return isinstance(seen, Raised) and seen.kinds[0] == "NotImplementedError"
