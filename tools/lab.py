"""Open the course in JupyterLab: `python tools/lab.py [JupyterLab options]`, what `make lab` runs."""

import os
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FIRST_LESSON = "notebooks/00_start_here.ipynb"
PORT_OPTIONS = ("--port", "--ServerApp.port")


def asked_port(options: list[str]) -> int | None:
    """The port named in JupyterLab options (`--port N` or `--port=N`), None without one.

    >>> asked_port(["--no-browser", "--port", "8899"]), asked_port(["--port=8899"]), asked_port(["--no-browser"])
    (8899, 8899, None)
    """
    for i, option in enumerate(options):
        name, _, value = option.partition("=")
        value = value or "".join(options[i + 1 : i + 2])
        if name in PORT_OPTIONS and value.isdigit():
            return int(value)
    return None


def is_taken(port: int) -> bool:
    """Whether something answers on this port of the loopback address."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def main() -> int:
    options = sys.argv[1:]
    port = asked_port(options)
    if port is not None and is_taken(port):
        advice = f"name another with LAB_ARGS='--port {port + 1}', or none to get a free one"
        print(f"make lab: port {port} is in use; {advice}", file=sys.stderr)
        return 1
    os.chdir(ROOT)
    # JupyterLab shows SVG pictures of trusted notebooks only; these are the course's own, with their stored outputs.
    notebooks = [str(path) for folder in ("notebooks", "solutions") for path in sorted(Path(folder).glob("*.ipynb"))]
    subprocess.run([sys.executable, "-m", "jupyter", "trust", *notebooks], stdout=subprocess.DEVNULL, check=False)
    start_page = f"--LabApp.default_url=/lab/tree/{FIRST_LESSON}"
    command = [sys.executable, "-m", "jupyter", "lab", "--ServerApp.root_dir=.", start_page]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        command.append("--allow-root")  # in a container one often is root, and JupyterLab refuses to start without it
    if port is not None:
        command.append("--ServerApp.port_retries=0")  # else JupyterLab takes another port than the one asked for
    os.execv(sys.executable, [*command, *options])


if __name__ == "__main__":
    sys.exit(main())
