"""Nothing in the course needs a network: not to run a notebook, not to read one."""

import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbconvert import HTMLExporter
from pages import loaded_from_network, silent_pictures

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize(
    ("page", "n_loads"),
    [
        ('<img alt="a" src="https://example.org/a.png">', 1),
        ("<img src=//example.org/a.png>", 1),
        ('<script type="module">import mermaid from "https://example.org/m.mjs";</script>', 1),
        ("<style>@import 'https://example.org/a.css'; b {background: url(http://example.org/b.png)}</style>", 2),
        ('<svg><image xlink:href="https://example.org/a.svg"/></svg>', 1),
        ('<a href="https://example.org">a link is followed by hand</a>', 0),
        ('<img src="data:image/png;base64,AAAA"><svg xmlns="http://www.w3.org/2000/svg"></svg>', 0),
    ],
)
def test_the_search_for_loads_finds_what_a_browser_fetches(page: str, n_loads: int) -> None:
    assert len(loaded_from_network(page)) == n_loads


@pytest.mark.parametrize(
    ("markup", "n_silent"),
    [
        ('<img src="a.png">', 1),
        ('<img src="a.png" alt=" ">', 1),
        ('<img alt="Two bars." src="a.png">', 0),
        ("<svg><rect/></svg>", 1),
        ('<svg aria-label="Two bars."><rect/></svg>', 1),
        ('<svg role="img" aria-label="Two bars."><rect/></svg>', 0),
        ('<svg aria-hidden="true"></svg><img alt="a" src="b"><img src="c">', 1),
    ],
)
def test_the_search_for_silent_pictures_finds_them(markup: str, n_silent: int) -> None:
    assert len(silent_pictures(markup)) == n_silent


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_an_exported_page_is_whole_without_a_network(path: Path) -> None:
    exporter = HTMLExporter(template_name="kvlab", extra_template_basedirs=[str(ROOT / "tools" / "nbconvert")])
    page, _ = exporter.from_notebook_node(nbformat.read(path, as_version=4))
    foreign = [a for a in loaded_from_network(page) if not re.search("/mermaid", a)]
    assert foreign == [], f"{path.name}: a reader without a network misses {foreign}"
    assert silent_pictures(page) == []
    assert "No description has been provided" not in page


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a Python started as pytest starts notebook kernels: with this process's environment."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    "code",
    [
        "import socket; socket.create_connection(('192.0.2.1', 80), timeout=1)",
        "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('192.0.2.1', 53))",
        "import urllib.request; urllib.request.urlopen('https://example.org', timeout=1)",
        "import socket; socket.gethostbyname('example.org')",
    ],
)
def test_kernels_are_started_without_a_network(code: str) -> None:
    run = run_python(code)
    assert run.returncode != 0
    assert "no network: tests and notebooks must not reach" in run.stderr


def test_kernels_still_reach_their_own_machine() -> None:
    run = run_python(
        "import socket; server = socket.create_server(('127.0.0.1', 0));"
        "socket.create_connection(('localhost', server.getsockname()[1]), timeout=5); print('reached')"
    )
    assert run.stdout == "reached\n", run.stderr
