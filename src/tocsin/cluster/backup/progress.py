"""Shared by backup and restore: long work in a thread, with progress, cancellation and readable errors.

Both remove their unfinished files when they are cancelled. They must therefore wait until the thread that writes these
files has stopped.
"""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from tocsin.durable_files import is_full_disk
from tocsin.uncancellable import wait_despite_cancel
from tocsin.wire.errors import InputError, StoppedError, StorageFullError

_T = TypeVar("_T")
OnSaved = Callable[[int, int], None]


def no_progress(done_bytes: int, all_bytes: int) -> None:
    """Ignores the progress."""


def count_bytes(all_bytes: int, on_progress: OnSaved, stop: threading.Event) -> Callable[[int], None]:
    """Returns a callback for the bytes just copied. It raises StoppedError after `stop` is set."""
    done_bytes = 0

    def passed(size_bytes: int) -> None:
        nonlocal done_bytes
        if stop.is_set():
            raise StoppedError("it was stopped; nothing remains of it")
        done_bytes += size_bytes
        on_progress(done_bytes, all_bytes)

    return passed


async def in_thread(work: Callable[[threading.Event], _T]) -> _T:
    """Runs the work in a thread. A cancellation tells the work to stop, and waits for it."""
    stop = threading.Event()
    return await wait_despite_cancel(asyncio.to_thread(work, stop), on_cancel=stop.set)


@contextmanager
def explain_os_errors(path: Path) -> Iterator[None]:
    """Translates errors of the operating system to errors that say what to do."""
    try:
        yield
    except OSError as error:
        if is_full_disk(error):
            raise StorageFullError(
                f"there is no room left for {path}", hint="make room, or choose another place; nothing was changed"
            ) from error
        raise InputError(f"{error.filename or path} cannot be used: {error.strerror or error}") from error


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
