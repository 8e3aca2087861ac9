"""A Jupyter server and a notebook in a browser, as a learner has them: what the browser tests drive."""

import ast
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jupyter_client.blocking.client import BlockingKernelClient
from nbformat import v4, write

RUN_AGAIN_S, RUNS = 10, 3  # Run All is sometimes lost while the page is still loading
WAIT_S = 15.0
WIDTHS = {"100": 1440, "50": 720}  # px of the whole page
THEMES = {"light": "JupyterLab Light", "dark": "JupyterLab Dark"}
# All cells are in the page, whether they are scrolled to or not; no news is fetched.
SETTINGS = {
    "notebook-extension/tracker": {"windowingMode": "none"},
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
}
# What Notebook 7.6 itself says on every page: it lacks a plug-in and the fonts of formulas that JupyterLab has.
OWN_FAULTS: dict[str, tuple[str, ...]] = {
    "lab": (),
    "notebook": (
        r"Cannot read properties of undefined \(reading 'schema'\)",
        "Command 'filebrowser:open-path' not registered",
        r"403 \(Forbidden\) .*/static/notebook/\w+\.woff",
    ),
}
# Each widget of the page under its name in Python; every one is shown twice.
SETUP = """\
import numpy as np
from kvlab.attention import offset_mask
from kvlab.decoder import TinyDecoder, generate
from kvlab.widgets import (
    BlockTable, CacheGrowth, HeadMap, MaskDiagram, MemoryExplorer, PositionDrift, RooflineExplorer
)

model = TinyDecoder()
runs = []
for caches in (model.make_caches(), None):
    trace = model.make_trace(2)
    generate(model, np.arange(5), 4, caches, trace)
    runs.append(trace)
growth = CacheGrowth(*runs)
fixed = MaskDiagram(np.tril(np.ones((3, 7))), expected=offset_mask)
mask = MaskDiagram(lambda n_new, n_total: np.tril(np.ones((n_new, n_total))), n_new=3, n_total=7, expected=offset_mask)
sinks = MaskDiagram("sinks", expected="window", n_new=6, n_total=12, window=4, n_sinks=2)
heads = HeadMap(8, 2, spread=lambda x, n_heads: np.tile(x, (n_heads // len(x), 1, 1)))
memory = MemoryExplorer("llama-3.1-8b")
roofline = RooflineExplorer("llama-3.1-8b")
steps = np.arange(24)
drift = PositionDrift({"position 0 at each step": 1.5 - 1.5 * 0.8**steps, "followed": 1e-15 * steps})
blocks = BlockTable([
    {"do": "allocate", "sequence": "a", "block": 0},
    {"do": "allocate", "sequence": "a", "block": 1},
    {"do": "write", "sequence": "a", "n_tokens": 6},
    {"do": "fork", "sequence": "a", "to": "b"},
    {"do": "write", "sequence": "b", "n_tokens": 1},
    {"do": "copy", "sequence": "a", "index": 1, "block": 5},
    {"do": "write", "sequence": "a", "n_tokens": 2},
], n_blocks=12, block_size=4)
"""
SHOWN = ("growth", "fixed", "mask", "sinks", "heads", "memory", "roofline", "drift", "blocks")


def write_widgets_notebook(path: Path) -> None:
    """A notebook that makes every widget and shows each of them in two cells."""
    cells = [v4.new_code_cell(SETUP)] + [v4.new_code_cell(name) for name in SHOWN for _ in range(2)]
    metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    write(v4.new_notebook(cells=cells, metadata=metadata), path)


def until(true: Callable[[], Any], what: str, wait_s: float = WAIT_S) -> Any:
    """Ask again until the answer is true; AssertionError with `what` after `wait_s`."""
    end = time.monotonic() + wait_s
    while True:
        found = true()
        if found:
            return found
        assert time.monotonic() < end, what
        time.sleep(0.05)


class Server:
    """JupyterLab and Notebook 7 behind one port of the loopback address."""

    def __init__(self, folder: Path, lessons: Path) -> None:
        self.folder, self.notebooks = folder, folder / "notebooks"
        shutil.copytree(lessons, self.notebooks, ignore=shutil.ignore_patterns("src", ".ipynb_checkpoints"))
        shutil.copy(lessons.parent / "LICENSE", folder)  # the text that lesson 08 reads
        self.runtime = folder / "runtime"
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        settings = self.folder / "settings"
        for name, values in SETTINGS.items():
            path = settings / "@jupyterlab" / f"{name}.jupyterlab-settings"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(values))
        options = {
            "ServerApp": {
                "port_retries": 0,
                "root_dir": self.notebooks,
                "open_browser": False,
                "allow_root": True,
                "disable_check_xsrf": True,
            },
            "IdentityProvider": {"token": ""},
            "LabApp": {"user_settings_dir": settings, "workspaces_dir": self.folder / "workspaces"},
            "LabServerApp": {"user_settings_dir": settings, "workspaces_dir": self.folder / "workspaces"},
            "JupyterNotebookApp": {"user_settings_dir": settings, "expose_app_in_browser": True},
        }
        options["ServerApp"] |= {"port": self.port, "ip": "127.0.0.1"}
        options["LabApp"]["expose_app_in_browser"] = True
        flags = [f"--{name}.{key}={value}" for name, pairs in options.items() for key, value in pairs.items()]
        folders = {f"JUPYTER_{name.upper()}_DIR": str(self.folder / name) for name in ("config", "data", "runtime")}
        self.log = (self.folder / "log").open("w")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "jupyter", "lab", *flags],
            env=os.environ | folders | {"IPYTHONDIR": str(self.folder / "ipython")},
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            until(self._answers, "the server does not answer", wait_s=60)
        except BaseException:
            self._end()
            raise

    def _answers(self) -> bool:
        assert self.process.poll() is None, f"the server ended: {self._log_tail()}"
        try:
            self.api("status")
        except OSError:
            return False
        return True

    def _log_tail(self) -> str:
        return (self.folder / "log").read_text()[-2000:]

    def api(self, path: str, method: str = "GET") -> Any:
        """One call of the server's own interface."""
        request = urllib.request.Request(f"{self.url}/api/{path}", method=method)
        with urllib.request.urlopen(request, timeout=10) as reply:
            body = reply.read()
        return json.loads(body) if body else None

    def kernels(self) -> list[dict[str, Any]]:
        """The running kernels. The server cannot list one in the moment that it starts, so it is asked again."""

        def ask() -> Any:
            try:
                return {"kernels": self.api("kernels")}
            except urllib.error.HTTPError:
                return None

        return until(ask, "the server does not list its kernels")["kernels"]

    def stop(self) -> None:
        """End the kernels and the server."""
        try:
            for kernel in self.kernels():
                self.api(f"kernels/{kernel['id']}", "DELETE")
        finally:
            self._end()

    def _end(self) -> None:
        """End the process group that `start` made."""
        os.killpg(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(10)
        self.log.close()


class LessonPage:
    """One notebook, opened in JupyterLab ("lab") or Notebook 7 ("notebook"), with a kernel of its own."""

    def __init__(self, browser: Any, server: Server, app: str, name: str, artifacts: Path) -> None:
        self.server, self.app, self.name, self.artifacts = server, app, name, artifacts
        self.heard: list[str] = []  # what the page's console calls an error, and what it asked of a network
        self.context = browser.new_context(viewport={"width": WIDTHS["100"], "height": 1000})
        self.page = self.context.new_page()
        self.page.on("console", self._hear)
        self.page.on("pageerror", lambda error: self.heard.append(f"uncaught: {error}"))
        self.page.on("request", self._see)
        kernels = {kernel["id"] for kernel in server.kernels()}
        folder = "lab/tree" if app == "lab" else "notebooks"
        self.page.goto(f"{server.url}/{folder}/{name}.ipynb{'?reset' if app == 'lab' else ''}")
        self.page.locator(".jp-Notebook .jp-Cell").first.wait_for(timeout=60_000)
        new = until(lambda: [k for k in server.kernels() if k["id"] not in kernels], "no kernel", 60)
        self.kernel_id = new[0]["id"]
        until(lambda: server.api(f"kernels/{self.kernel_id}")["execution_state"] == "idle", "the kernel is busy", 60)
        self.page.wait_for_function("window.jupyterapp !== undefined")
        if app == "lab":
            self.page.evaluate("jupyterapp.commands.execute('application:toggle-left-area')")
        self.client = BlockingKernelClient(connection_file=str(server.runtime / f"kernel-{self.kernel_id}.json"))
        self.client.load_connection_file()
        self.client.start_channels()

    @property
    def faults(self) -> list[str]:
        """Errors that are not the application's own."""
        own = [re.compile(pattern) for pattern in OWN_FAULTS[self.app]]
        return [fault for fault in self.heard if not any(pattern.search(fault) for pattern in own)]

    def _hear(self, message: Any) -> None:
        if message.type == "error":
            self.heard.append(f"{message.text} ({message.location.get('url')})")

    def _see(self, request: Any) -> None:
        if request.url.startswith(("http", "ws")) and "//127.0.0.1" not in request.url:
            self.heard.append(f"asked a network for {request.url}")

    def run_all(self) -> None:
        """Run > Run All Cells by mouse, and wait until every code cell has its number."""
        code = self.page.locator(".jp-CodeCell")
        numbers = code.locator(".jp-InputPrompt")
        for _ in range(RUNS):
            self.page.locator(".lm-MenuBar-itemLabel", has_text="Run").first.click()
            self.page.locator(".lm-Menu-itemLabel").get_by_text("Run All Cells", exact=True).click()
            try:
                until(lambda: any(map(_is_number, numbers.all_inner_texts())), "", RUN_AGAIN_S)
                break
            except AssertionError:
                continue
        errors = self.page.locator(".jp-RenderedText[data-mime-type='application/vnd.jupyter.error']")
        # Lesson 08 reads a text four times with the real model.
        until(lambda: errors.count() or all(map(_is_number, numbers.all_inner_texts())), "not every cell ran", 400)
        assert errors.count() == 0, errors.first.inner_text()
        assert self.page.locator(".jp-OutputArea-output", has_text="Error displaying widget").count() == 0

    def view(self, name: str, which: int = 0) -> Any:
        """The live view of a widget of the widgets notebook: the first or the second."""
        cell = self.page.locator(".jp-CodeCell").nth(1 + 2 * SHOWN.index(name) + which)
        return cell.locator(".jp-OutputArea-output [class^=kvlab-]").first

    def live_views(self) -> Any:
        """Every widget of a lesson that is drawn live."""
        return self.page.locator(".jp-OutputArea-output .kvlab-bar").locator("xpath=..")

    def python(self, expression: str) -> Any:
        """What the kernel says an expression is; asked beside the page, so that nothing on it moves."""
        wanted = {"value": f"__import__('json').dumps({expression})"}
        reply = self.client.execute("", silent=True, user_expressions=wanted, reply=True, timeout=WAIT_S)
        answer = reply["content"]["user_expressions"]["value"]
        assert answer["status"] == "ok", answer
        return json.loads(ast.literal_eval(answer["data"]["text/plain"]))

    def expect(self, expression: str, value: Any) -> None:
        """Wait until Python says so."""
        got: list[Any] = [None]

        def same() -> bool:
            got[0] = self.python(expression)
            return bool(got[0] == value)

        until(same, f"{expression}: expected {value!r} in Python", 5)

    def n_key_handlers(self) -> int:
        """How many functions listen for keys on the page's window."""
        devtools = self.context.new_cdp_session(self.page)
        window = devtools.send("Runtime.evaluate", {"expression": "window"})["result"]["objectId"]
        found = devtools.send("DOMDebugger.getEventListeners", {"objectId": window})["listeners"]
        devtools.detach()
        return sum(listener["type"] == "keydown" for listener in found)

    def use(self, theme: str = "light", width: str = "100") -> None:
        """Switch to a theme and a width of the page."""
        light = str(theme == "light").lower()
        command = f"jupyterapp.commands.execute('apputils:change-theme', {{theme: '{THEMES[theme]}'}})"
        if self.page.evaluate("document.body.dataset.jpThemeLight") != light:
            self.page.evaluate(command)
            self.page.wait_for_timeout(600)  # a second switch while the first one loads is too much for JupyterLab
        self.page.set_viewport_size({"width": WIDTHS[width], "height": 1000})
        self.page.wait_for_function(f"document.body.dataset.jpThemeLight === '{light}'")
        self.page.wait_for_timeout(150)

    def picture(self, locator: Any, name: str) -> Path:
        """Keep a picture of one widget in `artifacts/`."""
        path = self.artifacts / self.app / f"{name}.png"
        locator.scroll_into_view_if_needed()
        locator.screenshot(path=str(path), animations="disabled")
        return path

    def close(self) -> None:
        self.client.stop_channels()
        self.context.close()
        self.server.api(f"kernels/{self.kernel_id}", "DELETE")


def _is_number(prompt: str) -> bool:
    return prompt.strip("[]: \n").isdigit()
