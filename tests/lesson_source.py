"""Read the functions and classes that a lesson defines, without running the lesson."""

import ast
from pathlib import Path
from typing import Any

SOURCES = Path(__file__).resolve().parent.parent / "notebooks" / "src"


def definitions(stem: str) -> dict[str, Any]:
    """Execute a lesson's imports, functions and classes, nothing else; return the names.

    `stem` is the file's name without `.py`, such as "02_kv_cache". Where a lesson defines a name twice (naive, then
    fixed), the last definition wins, as it does for the reader.
    """
    tree = ast.parse((SOURCES / f"{stem}.py").read_text())
    kept = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)
    module = ast.Module([node for node in tree.body if isinstance(node, kept)], type_ignores=[])
    names: dict[str, Any] = {}
    exec(compile(module, f"{stem}.py", "exec"), names)
    return names
