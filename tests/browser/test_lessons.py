"""Every lesson with widgets in a real JupyterLab and Notebook, and every lesson's exported page with no network."""

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbconvert import HTMLExporter

pytestmark = pytest.mark.browser

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def sources(path: Path) -> list[str]:
    return [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]


def n_widgets(path: Path) -> int:
    """Cells of a lesson whose output is a static twin, and so a live widget where a kernel runs."""
    cells = nbformat.read(path, as_version=4).cells
    return sum("image/svg+xml" in out.get("data", {}) for cell in cells for out in cell.get("outputs", []))


WITH_WIDGETS = [path for path in NOTEBOOKS if any("kvlab.widgets" in source for source in sources(path))]


def test_there_are_lessons_with_widgets() -> None:
    assert len(WITH_WIDGETS) >= 4


@pytest.mark.parametrize("path", WITH_WIDGETS, ids=lambda p: p.stem)
def test_a_lesson_runs_and_draws_its_widgets(path: Path, open_page: Any) -> None:
    lesson = open_page(path.stem)
    views = lesson.live_views()
    assert views.count() == n_widgets(lesson.server.notebooks / path.name) > 0
    for i in range(views.count()):
        view = views.nth(i)
        view.locator("[role=status]").first.wait_for()
        assert view.locator("[role=status]").first.inner_text().strip()
        assert view.bounding_box()["height"] > 100
        step = view.get_by_role("button", name="Step")
        for _ in range(3):
            if step.count() and step.is_enabled():
                step.click()
    for theme in ("light", "dark"):
        for width in ("100", "50"):
            lesson.use(theme, width)
            for i in range(views.count()):
                fits = "e => e.scrollWidth <= e.parentElement.clientWidth + 1"
                assert views.nth(i).evaluate(fits), f"wider than the page at {width} %"
                lesson.picture(views.nth(i), f"lesson-{path.stem[:2]}-{i}-{theme}-{width}")
    lesson.use()
    assert not lesson.faults, "\n".join(lesson.faults)


# The exported page


def n_formulas(cell: Any) -> int:
    """$...$ and $$...$$ in a Markdown cell, code left out."""
    text = re.sub(r"```.*?```|`[^`]*`", "", cell.source, flags=re.DOTALL) if cell.cell_type == "markdown" else ""
    return text.replace("$$", "$").count("$") // 2


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_an_exported_page_shows_every_picture_with_no_network(path: Path, offline: Any, tmp_path: Path) -> None:
    exporter = HTMLExporter(template_name="kvlab", extra_template_basedirs=[str(ROOT / "tools" / "nbconvert")])
    notebook = nbformat.read(path, as_version=4)
    html, _ = exporter.from_notebook_node(notebook)
    page = tmp_path / f"{path.stem}.html"
    page.write_text(html, encoding="utf-8")
    offline.goto(page.as_uri())
    wanted = [mime for cell in notebook.cells for out in cell.get("outputs", []) for mime in out.get("data", {})]
    pictures = offline.locator("img:visible")
    assert pictures.count() >= sum(mime.startswith("image/") for mime in wanted)
    for picture in pictures.all():
        assert picture.evaluate("e => e.complete && e.naturalWidth > 0 && e.clientWidth > 0"), picture.get_attribute(
            "alt"
        )
        assert (picture.get_attribute("alt") or "").strip()
    for formula in offline.locator("math").all():
        assert formula.evaluate("e => e.getBoundingClientRect().height > 8"), formula.get_attribute("alttext")
    assert offline.locator("math").count() == sum(map(n_formulas, notebook.cells))
    assert offline.asked == offline.errors == []
    assert len(offline.inner_text("body")) > 2000
    assert not re.search(r"application/vnd\.jupyter\.widget", html)
