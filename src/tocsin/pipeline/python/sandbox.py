"""Runs user code under a time limit, captures its output and describes its errors.

The limits protect from mistakes, not from malice: the code has all rights of the cluster, and only an administrator may
bring it in.
"""

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

_TEXT_LIMIT: Final = 500


class FunctionTimeoutError(BaseException):
    """Not an Exception, so that the code that it ends does not catch it by mistake."""


@contextmanager
def limit_time(timeout_s: float) -> Iterator[None]:
    """Raises FunctionTimeoutError inside the block when the time is up."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are for the main thread, where Spark's workers run
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


def describe_error(error: BaseException, code: Code) -> str:
    """Describes an error in a line: its type, its text, and its place in the folder's files."""
    if isinstance(error, FunctionTimeoutError):
        return f"took longer than {code.timeout_s:g} s"
    try:
        text = str(error)
    except Exception:
        text = ""
    if isinstance(error, SyntaxError) and error.filename:
        # The error's text already names the line, without the folder of the file.
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
    """The standard output of a worker: a file of bounded size, which the workers share."""

    def __init__(self, path: str, *, most_bytes: int = 8 << 20) -> None:
        """`most_bytes`: then the file is rotated, and one old file is kept."""
        self._path = Path(path)
        self._most_bytes = most_bytes

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        # Output that cannot be written is lost: printing must never make a function fail.
        with suppress(OSError), self._path.open("a", encoding="utf-8", errors="replace") as file:
            file.write(text)
            if os.fstat(file.fileno()).st_size > self._most_bytes:
                self._path.replace(self._path.with_suffix(".1.log"))
        return len(text)


def listen(path: str) -> None:
    """Redirects what this process prints to the file, if there is one."""
    if path and not isinstance(sys.stdout, CapturedOutput):
        sys.stdout = sys.stderr = CapturedOutput(path)
