"""Build what is generated: notebooks, the README's table, its picture. `python tools/build.py [--check] [NN ...]`.

A lesson `notebooks/src/NN_name.py` becomes `notebooks/NN_name.ipynb`, executed. Exercises `solutions/src/NN_name.py`
become `solutions/NN_name.ipynb`, executed so that anything but "passed" fails the build, and `exercises/NN_name.ipynb`
with stubs, not executed. `--check` executes nothing: it compares the cells (type, source, id, tags and what nbgrader
reads) of the committed notebooks with their sources, and the rest byte for byte.
"""

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import assignments
import jupytext
import nbformat
import readme
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

ROOT = Path(__file__).resolve().parent.parent
KERNELSPEC = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


def lesson_sources(numbers: list[str] | None = None, folder: str = "notebooks") -> list[Path]:
    """The sources of `folder` in the order of the course, or those of the lessons with these numbers."""
    found = sorted((ROOT / folder / "src").glob("[0-9][0-9]_*.py"))
    return [s for s in found if not numbers or s.stem[:2] in numbers]


def notebooks_of(source: Path) -> dict[Path, Any]:
    """The unexecuted notebooks that one source makes, by where they belong.

    Raises:
        assignments.BadSource: a solution source with unbalanced marks, say.
    """
    name = f"{source.stem}.ipynb"
    if source.parent.parent.name == "notebooks":
        return {ROOT / "notebooks" / name: read_source(source)}
    prepared = assignments.prepare(read_source(source), source)
    return {
        ROOT / "solutions" / name: assignments.solution_of(prepared),
        ROOT / "exercises" / name: assignments.exercise_of(prepared),
    }


def read_source(source: Path) -> Any:
    """The unexecuted notebook of one percent script, with ids that depend on nothing but the order of cells."""
    notebook = jupytext.read(source)
    for i, cell in enumerate(notebook.cells):
        cell["id"] = f"{source.stem[:2]}-{i:03d}"
        cell.metadata = {"tags": cell.metadata["tags"]} if cell.metadata.get("tags") else {}
    notebook.metadata = {"kernelspec": KERNELSPEC, "language_info": {"name": "python"}}
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    return notebook


def execute(notebook: Any, folder: Path) -> None:
    """Run every cell from a fresh kernel, in `folder`; leave outputs that mean the same in every build."""
    client = NotebookClient(
        notebook,
        kernel_name="python3",
        extra_arguments=["--log-level=ERROR"],  # a local kernel needs no word about encryption
        timeout=300,
        record_timing=False,
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute()
    # Widget models end with the kernel; what stays is the static twin that each widget puts beside its view.
    notebook.metadata = {"kernelspec": KERNELSPEC, "language_info": {"name": "python"}}
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = join_streams(cell.outputs)
            for output in cell.outputs:
                output.get("data", {}).pop(WIDGET_VIEW, None)


def join_streams(outputs: list[Any]) -> list[Any]:
    """Join neighbouring printed outputs: where the kernel flushes between two prints is a matter of time."""
    joined: list[Any] = []
    for output in outputs:
        if output.output_type == "stream" and joined and joined[-1].get("name") == output.name:
            joined[-1].text += output.text
        else:
            joined.append(output)
    return joined


def cells_of(notebook: Any) -> list[dict[str, Any]]:
    """What a notebook and its source must agree on: all but outputs."""
    return [
        {"id": c["id"], "type": c.cell_type, "source": c.source}
        | {key: c.metadata.get(key) for key in ("tags", "nbgrader")}
        for c in notebook.cells
    ]


def build(source: Path) -> None:
    """Write the notebooks of one source, executed where they are to be; nothing is written when a cell raises."""
    made = notebooks_of(source)
    for target, notebook in made.items():
        if target.parent.name != "exercises":
            os.environ["KVLAB_STRICT"] = "1" if target.parent.name == "solutions" else "0"
            execute(notebook, target.parent)
        nbformat.validate(notebook)
    for target, notebook in made.items():
        nbformat.write(notebook, target)
        print(f"{target.relative_to(ROOT)}: {len(notebook.cells)} cells, {target.stat().st_size // 1000} kB")


def difference(source: Path) -> str | None:
    """One line about how a source's committed notebooks depart from it; None when they do not."""
    for target, notebook in notebooks_of(source).items():
        name = target.relative_to(ROOT)
        if not target.exists():
            return f"{name}: not built, run make build"
        built, wanted = cells_of(nbformat.read(target, as_version=4)), cells_of(notebook)
        for i, (ours, theirs) in enumerate(zip(built, wanted, strict=False)):
            if ours != theirs:
                return f"{name}: cell {i} differs from {source.relative_to(ROOT)}, run make build"
        if len(built) != len(wanted):
            return f"{name}: {len(built)} cells, its source makes {len(wanted)}, run make build"
    return None


def all_sources(numbers: list[str] | None = None) -> list[Path]:
    """Sources of lessons and of exercises."""
    return lesson_sources(numbers) + lesson_sources(numbers, "solutions")


def without_source() -> list[str]:
    """A line for each notebook whose source is gone."""
    built = {target for source in all_sources() for target in notebooks_of(source)}
    folders = ("notebooks", "solutions", "exercises")
    paths = [path for folder in folders for path in sorted((ROOT / folder).glob("*.ipynb"))]
    return [f"{path.relative_to(ROOT)}: has no source" for path in paths if path not in built]


def check(sources: list[Path]) -> int:
    found = [line for source in sources if (line := difference(source))] + without_source()
    found += [f"{path.relative_to(ROOT)}: out of date, run make build" for path in readme.stale(lesson_sources())]
    print("\n".join(found) or f"notebooks equal their {len(sources)} sources, README.md and its picture are up to date")
    return 1 if found else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("lessons", nargs="*", help="numbers of the lessons to build, such as 03; all when left out")
    parser.add_argument("--check", action="store_true", help="compare, build nothing; exit 1 on a difference")
    arguments = parser.parse_args()
    sources = all_sources(arguments.lessons)
    if not sources:
        print(f"no source matches {' '.join(arguments.lessons)}", file=sys.stderr)
        return 2
    if arguments.check:
        return check(sources)
    for source in sources:
        try:
            build(source)
        except (CellExecutionError, assignments.BadSource) as error:
            print(f"{source.relative_to(ROOT)}: {error}", file=sys.stderr)
            return 1
    for path in readme.write(lesson_sources()):
        print(f"{path.relative_to(ROOT)}: updated")
    return 0


if __name__ == "__main__":
    sys.exit(main())
