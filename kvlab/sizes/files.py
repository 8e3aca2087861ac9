"""Config files: those that come with the package, and those on disk."""

import json
from pathlib import Path
from typing import Any

CONFIGS = Path(__file__).resolve().parent.parent / "configs"
LIMIT_BYTES = 16 * 2**20  # no config.json is as large as this; a file of weights is


def config_names() -> list[str]:
    """The models whose config.json comes with the package, for `load_config`."""
    return sorted(path.name.removesuffix(".json") for path in CONFIGS.glob("*.json"))


def load_config(name: str) -> dict[str, Any]:
    """The fields of a real model's config.json that matter here, with `_source` and `_parameters` (weights, exact).

    Raises:
        ValueError: no such model comes with the package.

    >>> load_config("gemma-7b")["head_dim"]
    256
    """
    if name not in config_names():
        raise ValueError(f"load_config: no config named {name!r}, there are: {', '.join(config_names())}")
    return json.loads((CONFIGS / f"{name}.json").read_text(encoding="utf-8"))


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file.

    Raises:
        ValueError: one line: it cannot be read, is no JSON, or no object.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(LIMIT_BYTES + 1)
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror or error}") from None
    if len(raw) > LIMIT_BYTES:
        raise ValueError(f"{path}: larger than {LIMIT_BYTES // 2**20} MiB: expected a config.json")
    try:
        found = json.loads(raw.decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}: not JSON: {error.msg} in line {error.lineno}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path}: not JSON: not UTF-8 text") from None
    except (ValueError, RecursionError):
        raise ValueError(f"{path}: not JSON that can be read: a number or a nesting is too large") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path}: expected a config.json, an object of fields; got {_kind(found)}")
    return found


def _kind(value: Any) -> str:
    names = {list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


def config_files(paths: list[Path]) -> list[Path]:
    """The files to price: a directory stands for its config.json, or else for every JSON file and model folder in it.

    Raises:
        ValueError: a directory that holds none.
    """
    found: list[Path] = []
    for path in paths:
        if not path.is_dir():
            found.append(path)
        elif (path / "config.json").is_file():
            found.append(path / "config.json")
        else:
            inside = sorted({*path.glob("*.json"), *path.rglob("config.json")})
            if not inside:
                raise ValueError(f"{path}: a directory without a config.json or another JSON file")
            found += inside
    return found


def weights_beside(config: Path) -> int:
    """`total_size` of the safetensors index beside a config.

    Raises:
        ValueError: no index, or one without the number.
    """
    index = config.parent / "model.safetensors.index.json"
    if not index.is_file():
        raise ValueError(f"{config}: --weights auto needs {index.name} beside it; give --weights BYTES instead")
    metadata = read_json(index).get("metadata")
    size = metadata.get("total_size") if isinstance(metadata, dict) else None
    if isinstance(size, float) and size.is_integer():  # some writers put 1.6e10
        size = int(size)
    if type(size) is not int or size < 1:
        raise ValueError(f"{index}: metadata.total_size: expected a number of bytes, got {size!r:.40}")
    return size
