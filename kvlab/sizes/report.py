"""`kvlab size`: files in, a table, an explanation or JSON out; one bad file never stops the others."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvlab.sizes.allocate import allocated_bytes
from kvlab.sizes.dtypes import storage_format
from kvlab.sizes.explain import explain, human, kinds_in_words, naive_bytes, policies
from kvlab.sizes.files import config_files as config_files
from kvlab.sizes.files import read_json, weights_beside
from kvlab.sizes.heads import Mla
from kvlab.sizes.price import Fit, Price, fit, price

_UNITS = {"": 1, "B": 1}
_UNITS |= {f"{letter}iB": 1 << (10 * i) for i, letter in enumerate("KMGT", 1)}
_UNITS |= {f"{letter}B": 1000**i for i, letter in enumerate("kMGT", 1)}


def parse_bytes(text: str) -> int:
    """Bytes from "80GiB", "16.06 GB" or "16060522496"; a unit that is not clear, such as "80G", is refused.

    >>> parse_bytes("80GiB"), parse_bytes("80 GB")
    (85899345920, 80000000000)
    """
    found = re.fullmatch(r"\s*(\d{1,18})(?:\.(\d{1,9}))?\s*([A-Za-z]*)\s*", text, re.ASCII)
    unit = None if found is None else _UNITS.get("kB" if found[3] == "KB" else found[3])
    if found is None or unit is None:
        raise ValueError(f"{text!r}: expected bytes, such as 80GiB (80 x 2^30), 80GB (80 x 10^9) or 16060522496")
    part = found[2] or ""
    whole, rest = divmod(int(found[1] + part) * unit, 10 ** len(part))
    if rest:
        raise ValueError(f"{text!r} is no whole number of bytes")
    return whole


def dtype_name(text: str) -> str:
    """The name of a storage format, or a ValueError that lists them."""
    storage_format(text)
    return text


def mla_name(text: str) -> str:
    if text not in ("latent", "expanded"):
        raise ValueError(f"{text!r}: expected latent or expanded")
    return text


@dataclass(frozen=True)
class Request:
    """What is asked of every config. `weights` is a number of bytes, "auto", or None."""

    tokens: int
    sequences: int = 1
    k_dtype: str = "f16"
    v_dtype: str = "f16"
    mla: Mla = "latent"
    tp: int = 1
    encoder_tokens: int | None = None
    memory: int | None = None
    weights: int | str | None = None


@dataclass(frozen=True)
class Answer:
    """One config's price, or the line that says why there is none."""

    path: Path
    need: Price | None = None
    fits: Fit | None = None
    error: str = ""

    def as_dict(self) -> dict[str, Any]:
        if self.need is None:
            return {"file": str(self.path), "error": self.error}
        found = {"file": str(self.path), **self.need.as_dict(), "naive_bytes": naive_bytes(self.need)}
        found["allocated_bytes"] = {name: allocated_bytes(self.need, p) for name, p in policies(self.need).items()}
        if self.need.tp > 1:
            found["per_gpu"] = {
                "gpus": self.need.tp,
                "kv_bytes": self.need.gpu_kv_bytes,
                "state_bytes": None if self.need.state_bytes is None else self.need.gpu_state_bytes,
            }
        if self.fits is not None:
            found["fit"] = self.fits._asdict()
        return found


def answer(path: Path, request: Request) -> Answer:
    """Price one file; what is wrong with it is told in one line, never raised."""
    try:
        need = price(
            read_json(path),
            *(request.tokens, request.sequences, request.k_dtype, request.v_dtype),
            mla=request.mla,
            tp=request.tp,
            encoder_tokens=request.encoder_tokens,
        )
        weights = weights_beside(path) if request.weights == "auto" else request.weights
        fits = None if weights is None else fit(need, int(weights), request.memory)
    except ValueError as error:
        line = str(error).removeprefix("config: ")
        return Answer(path, error=line if line.startswith(str(path)) else f"{path}: {line}")
    return Answer(path, need, fits)


def render(answers: list[Answer], explained: bool) -> str:
    """Every priced config explained, or all of them as a table."""
    priced = [a for a in answers if a.need is not None]
    if explained:
        texts = [f"{a.path}\n{explain(a.need, a.fits)}" for a in priced if a.need is not None]
        return "\n\n\n".join(texts)
    return _table(priced)


def _table(answers: list[Answer]) -> str:
    head = ["config", "KV cache", "", "state", "a token more", "layers"]
    if any(a.fits is not None for a in answers):
        head += ["fit: sequences", "tokens", "cache > weights"]
    rows = [head, *(_cells(a) for a in answers)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    lines = []
    for row in rows:
        cells = [c.ljust(w) if i in (0, 5) else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _cells(found: Answer) -> list[str]:
    need, fits = found.need, found.fits
    assert need is not None
    state = "?" if need.state_bytes is None else human(need.state_bytes) if need.state_bytes else "-"
    name = found.path.parent.name if found.path.name == "config.json" else found.path.stem
    cells = [name or str(found.path), f"{need.kv_bytes:,}", human(need.kv_bytes), state, human(need.bytes_per_token)]
    cells.append(kinds_in_words(need))
    if fits is not None:
        sequences = "" if fits.memory_bytes is None else _or_none(fits.sequences)
        tokens = "" if fits.memory_bytes is None else _or_none(fits.tokens)
        cells += [sequences, tokens, "never" if fits.crossover_tokens is None else f"{fits.crossover_tokens:,}"]
    return cells


def _or_none(number: int | None) -> str:
    return "no limit" if number is None else f"{number:,}"


def remarks(answers: list[Answer], explained: bool) -> list[str]:
    """What is printed beside the result: errors, and the warnings that an explanation holds already."""
    lines = []
    for found in answers:
        if found.need is None:
            lines.append(found.error)
        elif not explained:
            lines += [f"{found.path}: warning: {warning}" for warning in found.need.warnings]
    return lines


def to_json(found: Answer) -> str:
    return json.dumps(found.as_dict())
