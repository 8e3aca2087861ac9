"""Build what is generated: notebooks, the README's table, its picture. `python tools/build.py [--check] [NN ...]`.

A source is `notebooks/src/NN_name.py`; the notebook built from it is `notebooks/NN_name.ipynb`, executed. `--check`
executes nothing: it compares the cells (type, source, tags, id) of the committed notebooks with their sources, and the
rest byte for byte.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import jupytext
import nbformat
import readme
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "notebooks" / "src"
KERNELSPEC = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


def notebook_path(source: Path) -> Path:
    """notebooks/src/NN_name.py -> notebooks/NN_name.ipynb."""
    return source.parent.parent / f"{source.stem}.ipynb"


def lesson_sources(numbers: list[str] | None = None) -> list[Path]:
    """The sources in the order of the course, or those of the lessons with these numbers."""
    return [s for s in sorted(SOURCES.glob("[0-9][0-9]_*.py")) if not numbers or s.stem[:2] in numbers]


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


def cells_of(notebook: Any) -> list[tuple[str, str, str, tuple[str, ...]]]:
    """What a notebook and its source must agree on."""
    return [(c["id"], c.cell_type, c.source, tuple(c.metadata.get("tags", []))) for c in notebook.cells]


def build(source: Path) -> None:
    """Execute one lesson and write its notebook; nothing is written when a cell raises."""
    notebook = read_source(source)
    target = notebook_path(source)
    execute(notebook, target.parent)
    nbformat.validate(notebook)
    nbformat.write(notebook, target)
    print(f"{target.relative_to(ROOT)}: {len(notebook.cells)} cells, {target.stat().st_size // 1000} kB")


def difference(source: Path) -> str | None:
    """One line about how a committed notebook departs from its source; None when it does not."""
    target = notebook_path(source)
    name = target.relative_to(ROOT)
    if not target.exists():
        return f"{name}: not built, run make build"
    built, wanted = cells_of(nbformat.read(target, as_version=4)), cells_of(read_source(source))
    for i, (ours, theirs) in enumerate(zip(built, wanted, strict=False)):
        if ours != theirs:
            return f"{name}: cell {i} differs from {source.relative_to(ROOT)}, run make build"
    return None if len(built) == len(wanted) else f"{name}: {len(built)} cells, its source has {len(wanted)}"


def without_source() -> list[str]:
    """A line for each notebook whose source is gone."""
    built = {notebook_path(source) for source in lesson_sources()}
    return [
        f"{path.relative_to(ROOT)}: has no source in {SOURCES.relative_to(ROOT)}"
        for path in sorted((ROOT / "notebooks").glob("*.ipynb"))
        if path not in built
    ]


def check(sources: list[Path]) -> int:
    found = [line for source in sources if (line := difference(source))] + without_source()
    found += [f"{path.relative_to(ROOT)}: out of date, run make build" for path in readme.stale(lesson_sources())]
    print("\n".join(found) or f"{len(sources)} notebooks equal their sources, README.md and its picture are up to date")
    return 1 if found else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("lessons", nargs="*", help="numbers of the lessons to build, such as 03; all when left out")
    parser.add_argument("--check", action="store_true", help="compare, build nothing; exit 1 on a difference")
    arguments = parser.parse_args()
    sources = lesson_sources(arguments.lessons)
    if not sources:
        print(f"no source matches {' '.join(arguments.lessons)} in {SOURCES.relative_to(ROOT)}", file=sys.stderr)
        return 2
    if arguments.check:
        return check(sources)
    for source in sources:
        try:
            build(source)
        except CellExecutionError as error:
            print(f"{source.relative_to(ROOT)}: {error}", file=sys.stderr)
            return 1
    for path in readme.write(lesson_sources()):
        print(f"{path.relative_to(ROOT)}: updated")
    return 0


if __name__ == "__main__":
    sys.exit(main())
