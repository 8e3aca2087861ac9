"""The measurement of the widgets in a page runs, and what it reports has a form; no time is asserted."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kvlab.bench import widgets

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def result(chromium: str) -> dict[str, Any]:
    with ThreadPoolExecutor(1) as elsewhere:  # the tests' own browser runs in this thread
        return elsewhere.submit(widgets.measure, n_steps=12).result(timeout=120)


def test_every_case_is_measured_and_no_page_jumps(result: dict[str, Any]) -> None:
    assert [row["widget"] for row in result["rows"]] == list(widgets.CASES)
    for row in result["rows"]:
        assert row["n_steps"] == 12
        assert 0 < row["script_ms_median"] <= row["script_ms_max"]
        assert row["first_paint_ms"] > 0 and row["frame_ms_median"] > 0
        assert row["heights"] == 1, f"{row['widget']} moves the page"


def test_the_last_step_was_drawn(result: dict[str, Any]) -> None:
    last = ["Step 12 of 12, decode.", "Query at position 11 ", "Event 12 of 12: s3 gets block 11", "12 sequences x"]
    for row, words in zip(result["rows"], last, strict=True):
        assert words in row["said"], row["said"]


def test_the_table_and_the_file_hold_every_case(result: dict[str, Any], tmp_path: Path) -> None:
    path = widgets.save(result, tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["widgets.json"] and path.read_text().endswith("\n")
    table = widgets.report(result)
    assert all(name in table for name in widgets.CASES) and "HEIGHT MOVED" not in table
    result["rows"][0]["heights"] = 2
    assert "HEIGHT MOVED, 2 heights" in widgets.report(result)
