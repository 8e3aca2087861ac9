"""What is generated equals its source, and what is committed reads well with no kernel and no network."""

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import build
import nbformat
import pytest
import readme
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from pages import silent_pictures

ROOT = Path(__file__).resolve().parent.parent
SOURCES = build.lesson_sources()
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
ASSIGNMENTS = sorted((ROOT / "exercises").glob("*.ipynb")) + sorted((ROOT / "solutions").glob("*.ipynb"))
LESSONS = [f"{number:02d}" for number in range(14)]

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


def outputs(notebook: Any) -> list[tuple[int, Any]]:
    return [(i, out) for i, cell in enumerate(notebook.cells) for out in cell.get("outputs", [])]


# Sources and what is built from them


@pytest.mark.parametrize("source", build.all_sources(), ids=lambda p: f"{p.parent.parent.name}-{p.stem}")
def test_notebook_equals_its_source(source: Path) -> None:
    assert build.difference(source) is None


def test_no_notebook_without_a_source() -> None:
    assert build.without_source() == []


def test_readme_table_and_picture_are_up_to_date() -> None:
    assert [p.name for p in readme.stale(SOURCES)] == []


def test_readme_lists_the_lessons() -> None:
    rows = re.findall(
        r"^\| \[(\d\d) .+?\]\((notebooks/\1_\w+\.ipynb)\) \| .+\? \| (\d+) \| no", readme.README.read_text(), re.M
    )
    assert [number for number, _, _ in rows] == LESSONS
    assert all((ROOT / path).exists() for _, path, _ in rows)
    assert all(10 <= int(minutes) <= 60 for _, _, minutes in rows)


@pytest.mark.parametrize(
    ("question", "last", "row"),
    [
        ("**What is asked?**", "Minutes: 30. GPU: not needed.", "What is asked? | 30 | no |"),
        ("**The question:** who\nasks?", "About 25 minutes. Needs no GPU.", "Who asks? | 25 | no |"),
        (
            "So.\n\nIt is so. Why?",
            "Minutes: 5. A GPU is used when there is one.",
            "It is so. Why? | 5 | no, used if there is one |",
        ),
    ],
)
def test_a_first_cell_is_read(tmp_path: Path, question: str, last: str, row: str) -> None:
    text = f"# 09 Title\n\n{question}\n\nAfter this lesson you can\n\n- ask.\n\n{last}"
    source = tmp_path / "09_name.py"
    source.write_text("# %% [markdown]\n" + re.sub("^", "# ", text, flags=re.M) + "\n\n# %%\nx = 1\n")
    assert readme.read_lesson(source).row == f"| [09 Title](notebooks/09_name.ipynb) | {row}"


def test_a_first_cell_without_minutes_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "09_name.py"
    source.write_text("# %% [markdown]\n# # 09 Title\n#\n# Why?\n#\n# After this lesson you can\n#\n# - x. GPU: no.\n")
    with pytest.raises(ValueError, match=r"09_name\.py: the first cell lacks the minutes"):
        readme.read_lesson(source)


def test_a_changed_cell_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "ROOT", tmp_path)
    source = tmp_path / "notebooks" / "src" / "09_name.py"
    source.parent.mkdir(parents=True)
    source.write_text("# %% [markdown]\n# # 09 Title\n\n# %%\nx = 1\n")
    name = "notebooks/09_name.ipynb"
    assert build.difference(source) == f"{name}: not built, run make build"
    for target, notebook in build.notebooks_of(source).items():
        nbformat.write(notebook, target)
    assert build.difference(source) is None
    source.write_text(source.read_text().replace("x = 1", "x = 2"))
    assert build.difference(source) == f"{name}: cell 1 differs from notebooks/src/09_name.py, run make build"
    source.write_text(source.read_text().replace("x = 2", "x = 1") + "\n# %%\ny = 2\n")
    assert build.difference(source) == f"{name}: 2 cells, its source makes 3, run make build"


def test_two_builds_are_the_same_bytes(tmp_path: Path) -> None:
    source = tmp_path / "09_name.py"
    source.write_text(
        "# %%\nfrom kvlab.predict import predict\nfrom kvlab.style import show, subplots\nimport time\n\n"
        "for i in range(3):\n    print(i, flush=True)\n    time.sleep(0.02)\n"
        "# %%\nguess = predict('How many?', options=['1', '2'])\nguess\n"
        "# %%\nfig, ax = subplots()\nax.plot([1, 2])\nshow(fig, alt='A line from 1 to 2.')\n"
    )
    built = []
    for _ in range(2):
        notebook = build.read_source(source)
        build.execute(notebook, tmp_path)
        built.append(nbformat.writes(notebook))
    assert built[0] == built[1]
    printed, asked, drawn = (cell.outputs for cell in notebook.cells)
    assert [out.text for out in printed] == ["0\n1\n2\n"]
    assert sorted(asked[0].data) == ["text/html", "text/plain"]
    assert drawn[0].metadata["image/png"]["alt"] == "A line from 1 to 2."


# Readable at rest


@each_notebook
def test_notebook_is_small(path: Path) -> None:
    assert path.stat().st_size < 300_000


@each_notebook
def test_notebook_has_the_size_of_one_sitting(path: Path) -> None:
    assert 15 <= len(read(path).cells) <= 60


@each_notebook
def test_notebook_was_run_from_top_to_bottom(path: Path) -> None:
    code = [cell for cell in read(path).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))


@each_notebook
def test_outputs_hold_no_error_no_warning_and_nothing_that_needs_a_kernel(path: Path) -> None:
    notebook = read(path)
    found = outputs(notebook)
    assert found, "no stored outputs"
    assert [i for i, out in found if out.output_type == "error"] == []
    assert [(i, out.text) for i, out in found if out.get("name") == "stderr"] == []
    assert [i for i, out in found if build.WIDGET_VIEW in out.get("data", {})] == []
    assert "widgets" not in notebook.metadata
    assert [i for i, out in found if re.search(r" at 0x[0-9a-f]{6,}>", str(out))] == []


@each_notebook
def test_notebook_has_checked_outputs_and_they_hold_no_picture(path: Path) -> None:
    checked = [cell for cell in read(path).cells if "nbval-check-output" in cell.metadata.get("tags", [])]
    assert checked
    for cell in checked:
        assert cell.outputs, f"nothing to check: {cell.source[:60]}"
        assert all(out.output_type == "stream" or set(out.data) <= {"text/plain"} for out in cell.outputs), cell.source


@each_notebook
def test_every_picture_has_alt_text(path: Path) -> None:
    notebook = read(path)
    silent: list[Any] = []
    for i, out in outputs(notebook):
        for mime, value in out.get("data", {}).items():
            if mime.startswith("image/") and not out.metadata.get(mime, {}).get("alt", "").strip():
                silent.append((i, mime))
            if mime in ("text/html", "image/svg+xml"):
                silent += [(i, picture) for picture in silent_pictures("".join(value))]
    for i, cell in enumerate(notebook.cells):
        if cell.cell_type == "markdown":
            silent += [(i, picture) for picture in silent_pictures(cell.source)]
            silent += [(i, picture) for picture in re.findall(r"!\[\s*\]\([^)]*\)", cell.source)]
    assert silent == []


# Links


LINK = re.compile(r"\[[^\]]*\]\(([^)\s#]+)[^)]*\)")


def broken_links(text: str, folder: Path) -> list[str]:
    local = [target for target in LINK.findall(text) if not re.match(r"\w+:", target)]
    return [target for target in local if not (folder / target).exists()]


def test_the_search_for_links_finds_broken_ones(tmp_path: Path) -> None:
    (tmp_path / "a.md").touch()
    text = "[a](a.md) [a](a.md#part) [b](b.md) ![c](c.png) [d](https://example.org)"
    assert broken_links(text, tmp_path) == ["b.md", "c.png"]


def test_links_of_the_readme_resolve() -> None:
    assert broken_links(readme.README.read_text(), ROOT) == []


@pytest.mark.parametrize("path", NOTEBOOKS + ASSIGNMENTS, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_links_of_a_notebook_resolve(path: Path) -> None:
    text = "\n".join(cell.source for cell in read(path).cells if cell.cell_type == "markdown")
    assert broken_links(text, path.parent) == []


# One list of versions


def pins() -> dict[str, str]:
    lines = [line.split("#")[0].strip() for line in (ROOT / "requirements.txt").read_text().splitlines()]
    return dict(line.split("==") for line in lines if line)


def test_requirements_are_pinned_and_satisfy_pyproject() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"].get("optional-dependencies", {})
    del extras["peers"]  # compiled from source for minutes: for those who measure, never installed by `make`
    wanted = [*project["project"]["dependencies"], *(r for group in extras.values() for r in group)]
    wanted += project["build-system"]["requires"]
    for line in wanted:
        requirement = Requirement(line)
        assert requirement.name in pins(), f"{line} is not in requirements.txt"
        assert requirement.specifier.contains(pins()[requirement.name]), f"{line} against {pins()[requirement.name]}"


def test_environment_yml_says_the_same() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    plain = [line for line in environment["dependencies"] if isinstance(line, str)]
    (pip,) = [line["pip"] for line in environment["dependencies"] if isinstance(line, dict)]
    assert environment["name"] == project["name"]
    assert plain == [f"python{project['requires-python']}", "pip"]
    assert pip == ["-r requirements.txt", "-e ."]


def test_the_python_floor_is_one() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    floor = project["project"]["requires-python"].removeprefix(">=")
    assert SpecifierSet(f">={floor}").contains("{}.{}".format(*sys.version_info))
    assert project["tool"]["mypy"]["python_version"] == floor
    assert project["tool"]["ruff"]["target-version"] == "py" + floor.replace(".", "")
    assert "sys.version_info < ({}, {})".format(*floor.split(".")) in (ROOT / "tools" / "set_up.sh").read_text()
    assert f"Python {floor} or newer" in readme.README.read_text()


def test_no_extra_package_index_in_requirements() -> None:
    assert not re.search(r"^\s*-", (ROOT / "requirements.txt").read_text(), re.M)


def test_every_data_file_of_the_package_is_shipped() -> None:
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["kvlab"]
    shipped = {path for pattern in patterns for path in (ROOT / "kvlab").glob(pattern)}
    data = {p for p in (ROOT / "kvlab").rglob("*") if p.is_file() and p.suffix not in (".py", ".pyc")}
    assert len(data) > 3
    assert data - shipped == set()
