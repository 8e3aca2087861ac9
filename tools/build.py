"""Build what is generated: notebooks from their percent sources. `python tools/build.py [--check] [NN ...]`.

A source is `notebooks/src/NN_name.py`; the notebook built from it is `notebooks/NN_name.ipynb`, executed. `--check`
executes nothing: it compares the cells (type, source, tags, id) of the committed notebooks with their sources.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "notebooks" / "src"
KERNELSPEC = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


def notebook_path(source: Path) -> Path:
    """notebooks/src/NN_name.py -> notebooks/NN_name.ipynb."""
    return source.parent.parent / f"{source.stem}.ipynb"


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
        notebook, timeout=300, kernel_name="python3", record_timing=False, resources={"metadata": {"path": str(folder)}}
    )
    client.execute()
    # Widget models end with the kernel; what stays is the static twin that each widget puts beside its view.
    notebook.metadata = {"kernelspec": KERNELSPEC, "language_info": {"name": "python"}}
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            output.get("data", {}).pop(WIDGET_VIEW, None)


def cells_of(notebook: Any) -> list[tuple[str, str, str, tuple[str, ...]]]:
    """What a notebook and its source must agree on."""
    return [(c["id"], c.cell_type, c.source, tuple(c.metadata.get("tags", []))) for c in notebook.cells]


def build(source: Path) -> None:
    notebook = read_source(source)
    target = notebook_path(source)
    execute(notebook, target.parent)
    nbformat.validate(notebook)
    nbformat.write(notebook, target)
    print(f"{target.relative_to(ROOT)}: {len(notebook.cells)} cells, {target.stat().st_size // 1000} kB")


def differences(source: Path) -> str | None:
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("lessons", nargs="*", help="numbers of the lessons to build, such as 03; all when left out")
    parser.add_argument("--check", action="store_true", help="compare, build nothing; exit 1 on a difference")
    arguments = parser.parse_args()
    sources = [
        s for s in sorted(SOURCES.glob("[0-9][0-9]_*.py")) if not arguments.lessons or s.stem[:2] in arguments.lessons
    ]
    if not sources:
        print(f"no source matches {' '.join(arguments.lessons)} in {SOURCES.relative_to(ROOT)}", file=sys.stderr)
        return 2
    if arguments.check:
        found = [line for source in sources if (line := differences(source))]
        print("\n".join(found) or f"{len(sources)} notebooks equal their sources")
        return 1 if found else 0
    for source in sources:
        try:
            build(source)
        except CellExecutionError as error:
            print(f"{source.relative_to(ROOT)}: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
