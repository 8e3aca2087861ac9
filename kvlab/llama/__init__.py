"""A real model on the course's caches: Llama's decoder, with the weights that `make model` writes or any of its kind.

    from kvlab.llama import load, load_tokenizer

The NumPy form loads no torch; `load(form="torch")` gives the one in PyTorch.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from kvlab.llama.checkpoint import Checkpoint
from kvlab.llama.config import LlamaConfig, read_config
from kvlab.llama.decoder import Llama
from kvlab.llama.tokenizer import Tokenizer
from kvlab.llama.weights import gather_weights

__all__ = ["DEFAULT_FOLDER", "Llama", "LlamaConfig", "ModelMissing", "Tokenizer", "load", "load_tokenizer"]

DEFAULT_FOLDER = Path(__file__).resolve().parents[2] / "models" / "SmolLM2-135M-Instruct"
CHECKED = "checked.json"  # written last by `make model`: [size, time, SHA-256] of each file, once it had checked them


class ModelMissing(FileNotFoundError):
    """The course's own model is not there: run `make model`."""


def load(
    folder: Path | str | None = None,
    *,
    form: str = "numpy",
    dtype: DTypeLike | Any = None,
    rotate_on_read: bool = False,
) -> Any:
    """A Llama-architecture decoder with the weights of a checkpoint folder.

    Args:
        folder: with config.json and safetensors, one file or several; None is the model of `make model`.
        form: "numpy" or "torch".
        dtype: of weights and activations, float32 unless told otherwise: a NumPy float dtype, or torch's.
        rotate_on_read: see Llama.

    Returns:
        A Llama, or a kvlab.llama.torch_llama.TorchLlama.

    Raises:
        ModelMissing: no folder is given and `make model` has not run.
        ValueError: a folder that is no such checkpoint, is damaged, or needs what is not supported; in one line.
    """
    path = model_folder(folder)
    if form not in ("numpy", "torch"):
        raise ValueError(f'form: expected "numpy" or "torch", got {form!r}')
    config = read_config(path)
    if form == "torch":
        from kvlab.llama.torch_llama import TorchLlama, from_checkpoint

        model: TorchLlama = from_checkpoint(path, config, dtype, rotate_on_read)
        return model
    tensors = Checkpoint(path, _numpy_dtype(dtype))
    return Llama(config, gather_weights(tensors, config), rotate_on_read)


def _numpy_dtype(dtype: Any) -> np.dtype:
    try:
        found = np.dtype(np.float32 if dtype is None else dtype)
    except TypeError:  # another library's
        found = None
    if found not in (np.float32, np.float64):
        raise ValueError(f"dtype: expected float32 or float64, got {found or dtype}: NumPy computes slowly in others")
    return found


def load_tokenizer(folder: Path | str | None = None) -> Tokenizer:
    """The tokenizer of a checkpoint folder; None is the model of `make model`. Raises as `load`."""
    return Tokenizer(model_folder(folder))


def model_folder(folder: Path | str | None = None) -> Path:
    """The folder to read, after checking that the course's own model is there and as `make model` left it."""
    if folder is None and not (DEFAULT_FOLDER / CHECKED).is_file():
        raise ModelMissing(f"{DEFAULT_FOLDER.name} is not here: run `make model` in the course's folder")
    path = DEFAULT_FOLDER if folder is None else Path(folder)
    if changed := changed_files(path):
        raise ValueError(f"{path / changed[0]} was changed after `make model` checked it: run `make model` again")
    return path


def changed_files(folder: Path) -> list[str]:
    """Names of the files that are gone or differ in size or time from when their SHA-256 was checked.

    Empty for a folder that `make model` did not write: nothing is known about its files.
    """
    try:
        stamps = json.loads((folder / CHECKED).read_text(encoding="utf-8"))
        return [name for name, (*stamp, _) in stamps.items() if stamp_of(folder / name) != stamp]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except (OSError, ValueError, TypeError, AttributeError):
        return [CHECKED]


def stamp_of(path: Path) -> list[int] | None:
    """[size in bytes, time of change in ns] of a file, None where there is none."""
    try:
        facts = path.stat()
    except OSError:
        return None
    return [facts.st_size, facts.st_mtime_ns]
