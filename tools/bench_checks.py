"""Time the checks: how long an answer takes, start-up aside. `make bench` runs it; writes results/checks.json.

Each round examines every exercise's reference and every mistake, each in turn, in this process. The first answer of an
exercise costs more, since the reference and the mistakes are then run for the first time; it is reported apart.
"""

import json
import statistics
import time
from pathlib import Path
from typing import Any

from kvlab.checks.engine import examine
from kvlab.checks.registry import cards, exercise
from kvlab.timing import device_facts

TARGET = Path(__file__).resolve().parent.parent / "results" / "checks.json"
N_ROUNDS = 5


def seconds(name: str, submission: Any) -> float:
    start = time.perf_counter()
    examine(exercise(name), submission)
    return time.perf_counter() - start


def main() -> None:
    for name in cards():
        exercise(name)  # loads NumPy, and torch where a lesson needs it: start-up
    first = {name: seconds(name, exercise(name).mistakes[0].submission()) for name in cards()}
    times: dict[str, list[float]] = {name: [] for name in cards()}
    for _ in range(N_ROUNDS):
        for name in cards():
            found = exercise(name)
            submissions = [found.reference, *(mistake.submission() for mistake in found.mistakes)]
            times[name].append(max(seconds(name, submission) for submission in submissions))
    rows = [
        {
            "exercise": name,
            "submissions": len(exercise(name).mistakes) + 1,
            "first_answer_ms": 1000 * first[name],
            "slowest_ms_min": 1000 * min(times[name]),
            "slowest_ms_median": 1000 * statistics.median(times[name]),
        }
        for name in cards()
    ]
    for row in rows:
        print(
            f"  {row['exercise']:<20}{row['submissions']:3} submissions, first {row['first_answer_ms']:7.1f} ms, "
            f"slowest {row['slowest_ms_min']:7.1f} ms min {row['slowest_ms_median']:7.1f} ms median"
        )
    facts = {"date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()), "command": "python tools/bench_checks.py"}
    result = facts | {"machine": device_facts("cpu"), "rounds": N_ROUNDS, "rows": rows}
    TARGET.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"  written to {TARGET.relative_to(TARGET.parent.parent)}")


if __name__ == "__main__":
    main()
