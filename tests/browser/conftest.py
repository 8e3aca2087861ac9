"""A real JupyterLab and Notebook on this machine, in a real browser, with nothing else within reach."""

import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import pytest
from jupyter_page import LessonPage, Server, write_widgets_notebook

from kvlab.bench.widgets import find_chromium

if TYPE_CHECKING:
    from playwright.sync_api import Browser

ROOT = Path(__file__).resolve().parents[2]
ARTIFACTS = ROOT / "artifacts"
LIMIT_S = 480  # of one test, its page and kernel included
FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"),
]


@pytest.fixture(autouse=True)
def within_the_time_limit() -> Iterator[None]:
    """A page that never answers ends its test, and what the test started is ended with it."""

    def stop(signum: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"the browser took longer than {LIMIT_S} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(LIMIT_S)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="session")
def chromium() -> str:
    """The browser's path; the tests are skipped where something to drive it with is missing."""
    pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install -r requirements.txt")
    found = find_chromium()
    if found is None:
        pytest.skip("needs Chromium: apt install chromium, or name one with CHROMIUM=/path")
    return found


@pytest.fixture(scope="session")
def browser(chromium: str) -> "Iterator[Browser]":
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for both applications, on copies of the notebooks, with its settings in a folder of its own."""
    pytest.importorskip("notebook", reason="needs Notebook 7: pip install -r requirements.txt")
    server = Server(tmp_path_factory.mktemp("jupyter"), ROOT / "notebooks")
    write_widgets_notebook(server.notebooks / "widgets.ipynb")
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session", params=["lab", "notebook"])
def app(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def open_page(browser: Any, server: Server, app: str) -> Iterator[Any]:
    """open_page("03_offset_mask") is that notebook, run from top to bottom in a page of its own."""
    pages = []

    def open_one(name: str) -> LessonPage:
        pages.append(LessonPage(browser, server, app, name, ARTIFACTS))
        pages[-1].run_all()
        return pages[-1]

    yield open_one
    for page in pages:
        page.close()


@pytest.fixture(scope="module")
def widgets(browser: Any, server: Server, app: str) -> Iterator[LessonPage]:
    """Two views of every widget on one page, run once for all tests of a module."""
    page = LessonPage(browser, server, app, "widgets", ARTIFACTS)
    page.run_all()
    yield page
    page.close()


@pytest.fixture
def offline(browser: Any) -> Iterator[Any]:
    """A page with no network at all, for files; `asked` lists what it tried to load, `errors` what it said."""
    context = browser.new_context(offline=True, viewport={"width": 1000, "height": 900})
    page = context.new_page()
    page.asked, page.errors = [], []
    page.on("console", lambda message: message.type == "error" and page.errors.append(message.text))
    page.on("request", lambda request: request.url.startswith("http") and page.asked.append(request.url))
    yield page
    context.close()
