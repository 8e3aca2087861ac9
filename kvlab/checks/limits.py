"""A time limit on code that runs in this process, and the learner's own line of an exception."""

import signal
import sysconfig
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

PACKAGE = str(Path(__file__).resolve().parent.parent)
LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


class OutOfTime(BaseException):
    """Raised into code that ran past its limit. A BaseException, so that `except Exception` does not swallow it."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Interrupt what runs inside after `seconds`, and again every tenth of a second, should it catch that.

    Works on the main thread of a system with POSIX timers; elsewhere nothing is interrupted (the command line runs
    each submission in a process of its own, which it ends).
    """
    can = hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()
    if not can:
        yield
        return

    def stop(_signal: int, _frame: FrameType | None) -> None:
        raise OutOfTime

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds, 0.1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def learner_line(error: BaseException) -> str:
    """The innermost line of the traceback that is neither ours nor a library's: `line 3: x = q / 0`; "" if none is."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not f.filename.startswith((PACKAGE, *LIBRARIES, "<frozen"))]
    if not own:
        return ""
    return f"line {own[-1].lineno}: {own[-1].line}" if own[-1].line else f"line {own[-1].lineno}"
