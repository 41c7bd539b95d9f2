"""Around code that others wrote: how long it may take, where its words go, and what is told of its errors."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Final

from tocsin.pipeline.python.protocol import Code

SAID_LIMIT_BYTES: Final = 8 << 20  # then the file begins anew, and the one before it is kept
_TEXT_LIMIT: Final = 500


class FunctionTimeoutError(BaseException):
    """Not an Exception, so that the code it ends does not catch it by mistake."""


@contextmanager
def limited(timeout_s: float) -> Iterator[None]:
    """TookTooLong is raised in there when the time is up."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are for the main thread, which is where Spark's workers call
        return
    before = signal.signal(signal.SIGALRM, _up)
    signal.setitimer(signal.ITIMER_REAL, timeout_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _up(_number: int, _frame: FrameType | None) -> None:
    raise FunctionTimeoutError


def told(error: BaseException, code: Code) -> str:
    """An error in a line: its type, its text, and the place in the folder's files that it came from."""
    if isinstance(error, FunctionTimeoutError):
        return f"took longer than {code.timeout_s:g} s"
    try:
        text = str(error)
    except Exception:
        text = ""
    if isinstance(error, SyntaxError) and error.filename:
        # Its own text names the line already, without the file's folder.
        return f"{type(error).__name__}: {_line(text)}"
    where = ""
    for frame in traceback.extract_tb(error.__traceback__):
        if Path(frame.filename).is_relative_to(code.folder):
            where = f" ({Path(frame.filename).relative_to(code.folder)}, line {frame.lineno})"
    return f"{type(error).__name__}{': ' if text else ''}{_line(text)}{where}"


def _line(text: str) -> str:
    line = " ".join(text.split())
    shown = line if len(line) <= _TEXT_LIMIT else line[:_TEXT_LIMIT] + "…"
    return shown.encode("utf-8", "replace").decode()


class CapturedOutput(io.TextIOBase):
    """Standard output of a worker: a file of bounded size, which the workers share."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        # What cannot be written is lost: words for people are never a reason to fail.
        with suppress(OSError), self._path.open("a", encoding="utf-8", errors="replace") as file:
            file.write(text)
            if os.fstat(file.fileno()).st_size > SAID_LIMIT_BYTES:
                self._path.replace(self._path.with_suffix(".1.log"))
        return len(text)


def listen(path: str) -> None:
    """From now on, what this process prints goes there."""
    if not isinstance(sys.stdout, CapturedOutput):
        sys.stdout = sys.stderr = CapturedOutput(path)
