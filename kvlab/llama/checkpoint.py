"""Reads a checkpoint folder: one model.safetensors, or several with an index.

The format is 8 bytes for the length of a JSON header, the header, then the arrays' bytes. It is read here by hand, in
NumPy, which has no bfloat16 of its own: such a number is the upper half of a float32.
"""

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
STORED = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": np.uint16}


class Checkpoint(Mapping[str, np.ndarray]):
    """The tensors of a checkpoint folder by name, read from disk when they are asked for.

    Args:
        folder: holds model.safetensors, or model.safetensors.index.json and the files it names.
        dtype: floats of what is returned.

    Raises:
        ValueError: a file is missing, is no safetensors file, or is shorter or longer than its header says; a dtype
            other than float64, float32, float16 and bfloat16; when a tensor is read, a number in it that is not finite.
    """

    def __init__(self, folder: Path, dtype: DTypeLike = np.float32) -> None:
        self.folder, self.dtype = folder, np.dtype(dtype)
        self._entries: dict[str, tuple[Path, int, dict[str, Any]]] = {}
        for name in _shards(folder):
            path = folder / name
            start, header = read_header(path)
            for tensor, entry in header.items():
                self._entries[tensor] = (path, start, entry)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._entries[name][2]["shape"])

    def __getitem__(self, name: str) -> np.ndarray:
        path, start, entry = self._entries[name]
        kind, (begin, end) = STORED[entry["dtype"]], entry["data_offsets"]
        raw = np.fromfile(path, kind, count=(end - begin) // np.dtype(kind).itemsize, offset=start + begin)
        if entry["dtype"] == "BF16":
            raw = (raw.astype(np.uint32) << 16).view(np.float32)
        if not np.isfinite(raw).all():
            raise ValueError(f"{path}: {name} holds NaN or infinity: fetch or convert the file again")
        return raw.astype(self.dtype, copy=False).reshape(entry["shape"])

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def read_header(path: Path) -> tuple[int, dict[str, dict[str, Any]]]:
    """The header of a safetensors file and the byte at which its arrays begin; the file's size must agree with it.

    Raises:
        ValueError: as Checkpoint.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length)) if 0 < length <= size - 8 else None
    except FileNotFoundError:
        raise ValueError(f"{path}: there is no such file") from None
    except (OSError, ValueError):
        header = None
    if not isinstance(header, dict):
        raise ValueError(f"{path}: expected a safetensors file, this one is truncated or is something else")
    header.pop("__metadata__", None)
    for name, entry in header.items():
        _expect_entry(path, name, entry)
    end = 0
    for begin, next_end in sorted(entry["data_offsets"] for entry in header.values()):
        if begin != end:
            raise ValueError(f"{path}: the header's arrays overlap or leave a gap: fetch or convert the file again")
        end = next_end
    expected = 8 + length + end
    if size != expected:
        raise ValueError(f"{path}: expected {expected:,} bytes by its header, got {size:,}: fetch or convert it again")
    return 8 + length, header


def _expect_entry(path: Path, name: str, entry: Any) -> None:
    try:
        kind, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        is_whole = isinstance(kind, str) and all(isinstance(n, int) and n >= 0 for n in (*shape, begin, end))
    except (TypeError, KeyError, ValueError):
        is_whole = False
    if not is_whole:
        raise ValueError(f"{path}: the header's entry of {name!r} is damaged: fetch or convert the file again")
    if kind not in STORED:
        raise ValueError(f"{path}: {name} is stored as {kind}, which is not supported, expected {', '.join(STORED)}")
    if end - begin != math.prod(shape) * np.dtype(STORED[kind]).itemsize:
        raise ValueError(f"{path}: {name} of shape {tuple(shape)} does not fill its {end - begin:,} bytes")


def _shards(folder: Path) -> list[str]:
    """Names of the files: the single one where there is one, as transformers has it, whatever index lies beside it."""
    if (folder / SINGLE).exists():
        return [SINGLE]
    index = folder / INDEX
    try:
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except FileNotFoundError:
        raise ValueError(f"{folder}: expected {SINGLE} or {INDEX}, there is neither") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{index}: expected an index with a weight_map, got {error!r}") from None
    if not all(isinstance(name, str) for name in names):
        raise ValueError(f"{index}: expected a weight_map of tensors to file names, got {sorted(map(str, names))[0]}")
    return sorted(names)
