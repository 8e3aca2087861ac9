"""What importing kvlab costs, and which module may import which."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "kvlab"

# From the top down; a module imports from its own row and the rows below it. A package counts as one.
LAYERS = [
    {"__main__", "cli", "bench"},
    {"grading"},
    {"checks", "widgets"},
    {"decoder", "torch_decoder", "llama", "beams"},
    {"caches", "torch_caches"},
    {
        "attention",
        "masks",
        "torch_attention",
        "positions",
        "sizes",
        "roofline",
        "timing",
        "trace",
        "predict",
        "style",
        "environment",
        "formulas",
    },
    {"shapes"},
]
LAYER_OF = {name: i for i, row in enumerate(LAYERS) for name in row}

# Loaded by the lessons on PyTorch, their checks and the benchmark, and by nothing else.
MAY_LOAD_TORCH = re.compile(r"kvlab\.(torch_|bench|llama\.torch_llama|checks\.lesson_(0[67]|1\d))")

MODULES = sorted(".".join(p.relative_to(PACKAGE.parent).with_suffix("").parts) for p in PACKAGE.rglob("*.py"))


def part_of(module: str) -> str:
    """kvlab.widgets.twin -> widgets."""
    return module.split(".")[1]


def tree_of(module: str) -> ast.Module:
    return ast.parse((PACKAGE.parent / Path(*module.split("."))).with_suffix(".py").read_text())


def imports(module: str) -> set[str]:
    """The parts of kvlab that a module imports anywhere in it, itself left out."""
    found = set()
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module == "kvlab":
            found |= {f"kvlab.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return {part_of(name) for name in found if name.startswith("kvlab.")} - {part_of(module)}


def loaded_by(statement: str) -> set[str]:
    """Top-level packages outside the standard library that a statement loads beyond NumPy."""
    code = (
        f"import sys, numpy; before = set(sys.modules); {statement}; "
        "print(*{m.partition('.')[0] for m in set(sys.modules) - before} - set(sys.stdlib_module_names))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    return set(run.stdout.split())


def test_import_kvlab_loads_nothing_but_itself() -> None:
    # Its cost over `import numpy` is then that of one small file, whatever the machine.
    assert loaded_by("import kvlab") == {"kvlab"}


def test_numpy_lessons_never_load_torch() -> None:
    quick = [m for m in MODULES if not MAY_LOAD_TORCH.match(m) and not m.endswith("__main__")]
    assert len(quick) > 5
    loaded = loaded_by(f"import {', '.join(quick)}")
    assert not loaded & {"torch", "transformers"}, loaded


def test_modules_that_every_lesson_imports_are_quick() -> None:
    # matplotlib costs 0.3 s, anywidget and IPython 0.1 s each: they load when a picture is drawn.
    names = ("attention", "positions", "caches", "trace", "decoder", "predict", "style", "widgets")
    present = [f"kvlab.{name}" for name in names if f"kvlab.{name}" in MODULES or f"kvlab.{name}.__init__" in MODULES]
    assert loaded_by(f"import {', '.join(present)}") <= {"kvlab", "numpy", "jaxtyping", "wadler_lindig"}


@pytest.mark.parametrize("module", [m for m in MODULES if m != "kvlab.__init__"])
def test_imports_run_from_the_top_down(module: str) -> None:
    assert part_of(module) in LAYER_OF, f"{module}: give it a row in LAYERS"
    above = {other for other in imports(module) if LAYER_OF[other] < LAYER_OF[part_of(module)]}
    assert not above, f"{module} imports {', '.join(sorted(above))} from a row above its own"


def test_no_two_parts_import_each_other() -> None:
    graph: dict[str, set[str]] = {}
    for module in MODULES:
        if module != "kvlab.__init__":
            graph.setdefault(part_of(module), set()).update(imports(module))

    def reach(part: str, seen: frozenset[str] = frozenset()) -> set[str]:
        new = graph.get(part, set()) - seen
        return new.union(*(reach(other, seen | new) for other in new))

    assert {part for part in graph if part in reach(part)} == set()
